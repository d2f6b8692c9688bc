#include "src/report/records.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/file.h"
#include "src/report/json_number.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

struct Place {
  const std::string& file;
  uint64_t line_number;
};

[[noreturn]] void fail(const Place& place, const std::string& problem) {
  throw Error(
      ErrorCode::kInput,
      fmt::format("cannot read {}, line {}: {}. The file must be as lockstep wrote it; was it "
                  "edited, cut, or written by another version?",
                  base::quote_path(place.file), place.line_number, problem));
}

bool is_hash(std::string_view text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string quoted_hash(const std::string& hash) {
  LOCKSTEP_CHECK(is_hash(hash), hash, "32 lower-case hexadecimal digits");
  return '"' + hash + '"';
}

// Fields of one object, each of which must be asked for once and be of the right type.
class Fields {
 public:
  Fields(const json& object, std::string where, const Place& place)
      : object_(object), where_(std::move(where)), place_(place) {
    if (!object_.is_object()) {
      fail(place_, fmt::format("expected an object{}, found {}", where_, object_.type_name()));
    }
  }

  uint64_t whole(const std::string& key, uint64_t limit = std::numeric_limits<uint64_t>::max()) {
    const json& value = take(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > limit) {
      refuse(key, fmt::format("a whole number from 0 to {}", limit), value);
    }
    return value.get<uint64_t>();
  }

  uint32_t whole_32(const std::string& key) {
    return static_cast<uint32_t>(whole(key, std::numeric_limits<uint32_t>::max()));
  }

  double number(const std::string& key) {
    const json& value = take(key);
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text == "NaN" || text == "Infinity" || text == "-Infinity") {
        return *parse_json_number(text);
      }
    }
    refuse(key, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"", value);
  }

  std::string hash(const std::string& key) {
    const json& value = take(key);
    if (!value.is_string() || !is_hash(value.get_ref<const std::string&>())) {
      refuse(key, "32 lower-case hexadecimal digits", value);
    }
    return value.get<std::string>();
  }

  const json& object(const std::string& key) { return take(key); }
  bool has(const std::string& key) const { return object_.contains(key); }

  void nothing_else() const {
    for (const auto& [key, value] : object_.items()) {
      if (!taken_.contains(key)) {
        fail(place_, fmt::format("the field {}{} is not known", json_string(key), where_));
      }
    }
  }

 private:
  const json& take(const std::string& key) {
    if (!object_.contains(key))
      fail(place_, fmt::format("the field \"{}\"{} is missing", key, where_));
    taken_.insert(key);
    return object_.at(key);
  }

  [[noreturn]] void refuse(const std::string& key, std::string_view expected,
                           const json& found) const {
    std::string text = found.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 60) + "...";
    fail(place_,
         fmt::format("the field \"{}\"{} must be {}; found {}", key, where_, expected, text));
  }

  const json& object_;
  std::string where_;  // "" or " in \"seconds\"", for messages
  Place place_;
  std::set<std::string> taken_;
};

// Refuses what the parser would let pass: one key twice (it keeps the last).
json parse_line(std::string_view line, const Place& place) {
  std::vector<std::set<std::string>> keys;  // one set for each open object
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  // Ours are two levels deep; a line of nothing but brackets would exhaust the stack when
  // destroyed.
  if (line.size() > 65536) {
    fail(place, fmt::format("{} bytes are more than the 65536 a line may have", line.size()));
  }
  try {
    json value = json::parse(line, watch);
    if (!twice.empty()) fail(place, fmt::format("the field {} comes twice", json_string(twice)));
    return value;
  } catch (const json::exception& error) {
    // Their text repeats pieces of the input, which may hold anything.
    const auto* const position = dynamic_cast<const json::parse_error*>(&error);
    fail(place, position ? fmt::format("no JSON from column {} on", position->byte)
                         : std::string("a number is out of range"));
  }
}

template <typename Record>
std::vector<Record> read_lines(const std::string& path, TornLine torn,
                               Record (*parse)(std::string_view, const std::string&, uint64_t)) {
  const std::string bytes = base::read_file(path);
  std::string_view rest = bytes;
  std::vector<Record> records;
  while (!rest.empty()) {
    const uint64_t line_number = records.size() + 1;
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      if (torn == TornLine::kIgnore) break;
      fail({path, line_number}, "the last line has no line end, so the writer did not finish it");
    }
    records.push_back(parse(rest.substr(0, end), path, line_number));
    rest.remove_prefix(end + 1);
  }
  return records;
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  const std::string accuracy =
      metrics.accuracy ? ",\"accuracy\":" + json_number(*metrics.accuracy) : "";
  std::string line = fmt::format(
      "{{\"step\":{},\"epoch\":{},\"loss\":{}{},\"gradient_norm\":{},\"learning_rate\":{},"
      "\"parameter_hash\":{},\"drift\":{}",
      metrics.step, metrics.epoch, json_number(metrics.loss), accuracy,
      json_number(metrics.gradient_norm), json_number(metrics.learning_rate),
      quoted_hash(metrics.parameter_hash), json_number(metrics.drift));
  if (metrics.state_hash) line += ",\"state_hash\":" + quoted_hash(*metrics.state_hash);
  if (metrics.validation_loss) {
    line += ",\"validation_loss\":" + json_number(*metrics.validation_loss);
  }
  if (metrics.validation_accuracy) {
    line += ",\"validation_accuracy\":" + json_number(*metrics.validation_accuracy);
  }
  return line + '}';
}

std::string timings_line(const StepTimings& timings) {
  return fmt::format(
      "{{\"step\":{},\"step_seconds\":{},\"seconds\":{{\"compute\":{},\"wait\":{},\"reduce\":{},"
      "\"apply\":{},\"hash\":{}}},\"samples_per_second\":{},\"tokens_per_second\":{},\"stolen\":{},"
      "\"deaths\":{},\"replacements\":{},\"bytes_reduced\":{},\"bytes_sent\":{}}}",
      timings.step, json_number(timings.seconds), json_number(timings.compute),
      json_number(timings.wait), json_number(timings.reduce), json_number(timings.apply),
      json_number(timings.hash), json_number(timings.samples_per_second),
      json_number(timings.tokens_per_second), timings.stolen, timings.deaths, timings.replacements,
      timings.bytes_reduced, timings.bytes_sent);
}

StepMetrics parse_metrics_line(std::string_view line, const std::string& file,
                               uint64_t line_number) {
  const Place place{file, line_number};
  const json value = parse_line(line, place);
  Fields fields(value, "", place);
  StepMetrics metrics;
  metrics.step = fields.whole("step");
  metrics.epoch = fields.whole("epoch");
  metrics.loss = fields.number("loss");
  if (fields.has("accuracy")) metrics.accuracy = fields.number("accuracy");
  metrics.gradient_norm = fields.number("gradient_norm");
  metrics.learning_rate = fields.number("learning_rate");
  metrics.parameter_hash = fields.hash("parameter_hash");
  metrics.drift = fields.number("drift");
  if (fields.has("state_hash")) metrics.state_hash = fields.hash("state_hash");
  if (fields.has("validation_loss")) metrics.validation_loss = fields.number("validation_loss");
  if (fields.has("validation_accuracy")) {
    metrics.validation_accuracy = fields.number("validation_accuracy");
  }
  fields.nothing_else();
  return metrics;
}

StepTimings parse_timings_line(std::string_view line, const std::string& file,
                               uint64_t line_number) {
  const Place place{file, line_number};
  const json value = parse_line(line, place);
  Fields fields(value, "", place);
  StepTimings timings;
  timings.step = fields.whole("step");
  timings.seconds = fields.number("step_seconds");
  Fields parts(fields.object("seconds"), " in \"seconds\"", place);
  timings.compute = parts.number("compute");
  timings.wait = parts.number("wait");
  timings.reduce = parts.number("reduce");
  timings.apply = parts.number("apply");
  timings.hash = parts.number("hash");
  parts.nothing_else();
  timings.samples_per_second = fields.number("samples_per_second");
  timings.tokens_per_second = fields.number("tokens_per_second");
  timings.stolen = fields.whole_32("stolen");
  timings.deaths = fields.whole_32("deaths");
  timings.replacements = fields.whole_32("replacements");
  timings.bytes_reduced = fields.whole("bytes_reduced");
  timings.bytes_sent = fields.whole("bytes_sent");
  fields.nothing_else();
  return timings;
}

std::vector<StepMetrics> read_metrics(const std::string& path, TornLine torn) {
  auto records = read_lines<StepMetrics>(path, torn, &parse_metrics_line);
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].step != records[i - 1].step + 1) {
      fail({path, i + 1}, fmt::format("step {} follows step {}; expected step {}", records[i].step,
                                      records[i - 1].step, records[i - 1].step + 1));
    }
  }
  return records;
}

std::vector<StepTimings> read_timings(const std::string& path, TornLine torn) {
  auto records = read_lines<StepTimings>(path, torn, &parse_timings_line);
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].step <= records[i - 1].step) {
      fail({path, i + 1}, fmt::format("step {} follows step {}; steps must rise", records[i].step,
                                      records[i - 1].step));
    }
  }
  return records;
}

}  // namespace lockstep::report
