#include "src/cli/result_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/cli/command.h"
#include "src/cli/training_run.h"
#include "src/report/json_number.h"
#include "src/train/recipe.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

using nlohmann::ordered_json;

constexpr int kFormatVersion = 1;
constexpr uint64_t kMostBytes = 16 << 20;

// The words that repeat the run, from any folder.
std::vector<std::string> repeat_arguments(train::TrainOptions options) {
  const auto make_absolute = [](std::string& path) {
    std::error_code error;
    const std::string absolute = std::filesystem::absolute(path, error).string();
    if (!error) path = absolute;
  };
  for (std::string& path : options.data) make_absolute(path);
  if (options.validation_path) make_absolute(*options.validation_path);
  return train::train_arguments(options, train::ArgumentChoice::kRepeat);
}

// As in metrics.jsonl: JSON has no NaN.
ordered_json number(double value) {
  const std::string text = report::json_number(value);
  return text.front() == '"' ? ordered_json(text.substr(1, text.size() - 2)) : ordered_json(value);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

ordered_json deaths_json(const std::vector<launch::Death>& deaths) {
  ordered_json list = ordered_json::array();
  for (const launch::Death& death : deaths) {
    list.push_back({{"rank", death.rank},
                    {"step", death.step},
                    {"what", death.description},
                    {"seconds", death.seconds}});
  }
  return list;
}

ordered_json memory_json(const train::MemoryNeed& memory) {
  return {{"parameters", memory.parameters},
          {"estimated_bytes_per_replica", memory.per_replica()},
          {"estimated_bytes_shared", memory.shared}};
}

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot use {}: {}. Expected what `lockstep train` writes.",
                          base::quote_path(path), problem));
}

std::map<std::string, std::string> flat_values(const ordered_json& object) {
  std::map<std::string, std::string> values;
  const ordered_json flat = object.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string name = pointer.empty() ? pointer : pointer.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    values[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return values;
}

}  // namespace

std::string compiler_name() {
#ifdef __clang__
  return __VERSION__;
#else
  return "GCC " __VERSION__;
#endif
}

void write_result(const train::PreparedTraining& training, const TrainingOutcome& outcome) {
  const train::TrainOptions& options = training.options;
  const bool has_steps = outcome.step_count > 0;
  const report::StepMetrics& last = outcome.last;
  ordered_json result = {
      {"format_version", kFormatVersion},
      {"steps", outcome.step_count},
      {"complete", outcome.exit_status() == kSuccess},
      {"global_batch", options.global_batch},
      {"microbatch", options.microbatch},
      {"replicas", options.replicas},
      {"threads", options.threads},
      {"loss", has_steps ? number(last.loss) : ordered_json()},
      {"validation_loss", last.validation_loss ? number(*last.validation_loss) : ordered_json()},
      {"accuracy", last.accuracy ? number(*last.accuracy) : ordered_json()},
      {"validation_accuracy",
       last.validation_accuracy ? number(*last.validation_accuracy) : ordered_json()},
      {"state_hash", last.state_hash ? ordered_json(*last.state_hash) : ordered_json()},
      {"drift", has_steps ? number(last.drift) : ordered_json()},
      {"seconds", outcome.launch.seconds},
      {"samples_per_second", outcome.samples_per_second},
      {"tokens_per_second", outcome.tokens_per_second},
      {"deaths", outcome.launch.deaths.size()},
      {"died", deaths_json(outcome.launch.deaths)}};
  result["recipe"] = ordered_json::parse(training.recipe);
  result["memory"] = memory_json(training.memory);
  result["machine"] = {{"cpu", cpu_name()},
                       {"cores", training.cpu.usable_cores},
                       {"compiler", compiler_name()},
                       {"lockstep", LOCKSTEP_VERSION}};
  result["arguments"] = repeat_arguments(options);
  base::write_file_atomically(
      options.out + "/result.json",
      result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::map<std::string, std::string> flat_recipe(const std::string& json) {
  return flat_values(ordered_json::parse(json));
}

StoredResult read_result(const std::string& folder) {
  const std::string path = folder + "/result.json";
  const std::string text = base::read_file(path, kMostBytes);
  const ordered_json json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) refuse(path, "it is no JSON object");
  StoredResult result;
  try {
    const int version = json.at("format_version").get<int>();
    if (version != kFormatVersion) {
      refuse(path, fmt::format("its format version is {}, this program reads {}", version,
                               kFormatVersion));
    }
    const auto& steps = json.at("steps");
    if (!steps.is_number_unsigned()) refuse(path, "steps is no whole number");
    result.steps = steps.get<uint64_t>();
    result.is_complete = json.at("complete").get<bool>();
    const auto& hash = json.at("state_hash");
    if (!hash.is_null()) result.state_hash = hash.get<std::string>();
    result.recipe = flat_values(json.at("recipe"));
    result.machine = flat_values(json.at("machine"));
    result.arguments = json.at("arguments").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    refuse(path, "a field is missing or of another type");
  }
  return result;
}

}  // namespace lockstep::cli
