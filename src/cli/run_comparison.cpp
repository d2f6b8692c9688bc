#include "src/cli/run_comparison.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/report/json_number.h"

namespace lockstep::cli {
namespace {

using nlohmann::ordered_json;
using report::json_number;
using report::same_bits;
using report::StepMetrics;

constexpr size_t kMostFieldsListed = 6;

std::optional<StepDifference> step_difference(const StepMetrics& left, const StepMetrics& right) {
  const auto numbers = [&](const char* what, double a, double b) -> std::optional<StepDifference> {
    if (same_bits(a, b)) return std::nullopt;
    return StepDifference{left.step, what, json_number(a), json_number(b)};
  };
  // In the order of cause and effect: the forward pass, the gradients, what was made of them.
  if (auto found = numbers("learning_rate", left.learning_rate, right.learning_rate)) return found;
  if (auto found = numbers("loss", left.loss, right.loss)) return found;
  if (auto found = numbers("gradient_norm", left.gradient_norm, right.gradient_norm)) return found;
  if (left.parameter_hash != right.parameter_hash) {
    return StepDifference{left.step, "parameter_hash", left.parameter_hash, right.parameter_hash};
  }
  if (left.state_hash && right.state_hash && *left.state_hash != *right.state_hash) {
    return StepDifference{left.step, "state_hash", *left.state_hash, *right.state_hash};
  }
  if (left.validation_loss && right.validation_loss) {
    if (auto found = numbers("validation_loss", *left.validation_loss, *right.validation_loss)) {
      return found;
    }
  }
  for (const auto& [what, a, b] :
       {std::tuple("accuracy", left.accuracy, right.accuracy),
        std::tuple("validation_accuracy", left.validation_accuracy, right.validation_accuracy)}) {
    if (!a || !b) continue;
    if (auto found = numbers(what, *a, *b)) return found;
  }
  if (auto found = numbers("drift", left.drift, right.drift)) return found;
  if (left.epoch == right.epoch) return std::nullopt;
  return StepDifference{left.step, "epoch", std::to_string(left.epoch),
                        std::to_string(right.epoch)};
}

// One line of parameter_hashes.jsonl.
struct ParameterHashes {
  uint64_t step = 0;
  ordered_json parameters;  // name -> hash, in the order of the model
};

std::vector<ParameterHashes> read_parameter_hashes(const std::string& folder) {
  const std::string path = folder + "/parameter_hashes.jsonl";
  std::vector<ParameterHashes> all;
  if (!base::file_status(path)) return all;
  std::istringstream lines(base::read_file(path, uint64_t{1} << 30));
  for (std::string line; std::getline(lines, line);) {
    const ordered_json json = ordered_json::parse(line, nullptr, false);
    const bool is_whole = json.is_object() && json.contains("step") &&
                          json["step"].is_number_unsigned() && json.contains("parameters") &&
                          json["parameters"].is_object();
    if (is_whole) all.push_back({json["step"].get<uint64_t>(), json["parameters"]});  // else torn
  }
  return all;
}

std::optional<ParameterDifference> compare_parameters(const ParameterHashes& left,
                                                      const ParameterHashes& right) {
  ParameterDifference difference;
  difference.step = left.step;
  difference.count = left.parameters.size();
  for (const auto& [name, hash] : left.parameters.items()) {
    if (right.parameters.contains(name) && right.parameters[name] == hash) continue;
    if (difference.differing++ == 0) difference.name = name;
  }
  if (difference.differing == 0) return std::nullopt;
  return difference;
}

std::string steps_of(const std::vector<ParameterHashes>& hashes) {
  if (hashes.empty()) return "never";
  if (hashes.size() == 1) return fmt::format("after step {}", hashes[0].step);
  return fmt::format("after {} steps up to {}", hashes.size(), hashes.back().step);
}

// Why two runs that differ have no parameter to name.
std::string no_parameter(const StoredRun& left, const StoredRun& right) {
  const auto of_left = read_parameter_hashes(left.folder);
  const auto of_right = read_parameter_hashes(right.folder);
  for (auto last = of_left.rbegin(); last != of_left.rend(); ++last) {
    const auto is_common = [&](const ParameterHashes& other) { return other.step == last->step; };
    if (std::none_of(of_right.begin(), of_right.end(), is_common)) continue;
    return fmt::format("none; all are equal after step {}, the last that both hashed them after",
                       last->step);
  }
  return fmt::format(
      "not known; single parameters were hashed in A {}, in B {}. With --hash-every 1 in both it "
      "has a name",
      steps_of(of_left), steps_of(of_right));
}

std::vector<std::string> map_differences(const std::map<std::string, std::string>& left,
                                         const std::map<std::string, std::string>& right) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [name, value] : left) values[name] = {value, "nothing"};
  for (const auto& [name, value] : right) {
    values.try_emplace(name, "nothing", "").first->second.second = value;
  }
  std::vector<std::string> differences;
  for (const auto& [name, pair] : values) {
    if (pair.first == pair.second) continue;
    differences.push_back(fmt::format("{}: {} in A, {} in B", name, pair.first, pair.second));
  }
  return differences;
}

void append_some(std::vector<std::string>& lines, const std::vector<std::string>& found) {
  for (size_t i = 0; i < std::min(found.size(), kMostFieldsListed); ++i) {
    lines.push_back("  " + found[i]);
  }
  if (found.size() > kMostFieldsListed) {
    lines.push_back(fmt::format("  and {} more", found.size() - kMostFieldsListed));
  }
}

std::string reason_within_equal_recipes(const StepDifference& difference) {
  if (difference.what == "learning_rate" || difference.what == "epoch") {
    return "the schedules differ although the recipes are equal: were the files written by "
           "different "
           "versions of lockstep?";
  }
  if (difference.step == 1 && difference.what == "loss") {
    return "the forward pass of the very first step differs: other initial values or other kernels "
           "(another CPU, another LibTorch build), not the exchange of gradients";
  }
  if (difference.what == "loss") {
    return "the parameters were equal, the forward pass was not: other kernels (another CPU or "
           "LibTorch build), or a model that reads a clock, a file or an unseeded random number. "
           "--audit 1 names the microbatch";
  }
  if (difference.what == "gradient_norm" || difference.what == "parameter_hash") {
    return "the losses are equal, so the backward pass or the update differs: other kernels, or a "
           "backward that is no pure function. --audit 1 names the microbatch and the parameter";
  }
  return fmt::format("the training agrees; only the {} differs", difference.what);
}

}  // namespace

StoredRun read_run(const std::string& folder) {
  const auto status = base::file_status(folder);
  if (!status || status->kind != base::FileKind::kFolder) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} is {}. Expected the folder of a run (--out of lockstep train).",
                    base::quote_path(folder), status ? base::describe(status->kind) : "not there"));
  }
  if (!base::file_status(folder + "/metrics.jsonl")) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} holds no metrics.jsonl. Expected the folder of a run (--out of lockstep "
                    "train).",
                    base::quote_path(folder)));
  }
  StoredRun run;
  run.folder = folder;
  run.metrics = report::read_metrics(folder + "/metrics.jsonl", report::TornLine::kIgnore);
  if (base::file_status(folder + "/result.json")) run.result = read_result(folder);
  return run;
}

std::optional<StepDifference> first_difference(const StoredRun& left, const StoredRun& right,
                                               uint64_t first, uint64_t last) {
  const size_t common = std::min(left.metrics.size(), right.metrics.size());
  for (size_t i = 0; i < common; ++i) {
    const StepMetrics& metrics = left.metrics[i];
    if (metrics.step < first || metrics.step > last) continue;
    if (auto found = step_difference(metrics, right.metrics[i])) return found;
  }
  return std::nullopt;
}

std::vector<std::string> recipe_differences(const StoredRun& left, const StoredRun& right) {
  if (!left.result || !right.result) return {};
  return map_differences(left.result->recipe, right.result->recipe);
}

std::optional<ParameterDifference> first_parameter_difference(const StoredRun& left,
                                                              const StoredRun& right) {
  const auto hashes = read_parameter_hashes(right.folder);
  for (const ParameterHashes& of_left : read_parameter_hashes(left.folder)) {
    const auto of_right =
        std::find_if(hashes.begin(), hashes.end(),
                     [&](const ParameterHashes& other) { return other.step == of_left.step; });
    if (of_right == hashes.end()) continue;
    if (auto found = compare_parameters(of_left, *of_right)) return found;
  }
  return std::nullopt;
}

std::vector<std::string> explain(const StoredRun& left, const StoredRun& right,
                                 const StepDifference& difference) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("first difference: step {}, {}: {} in A, {} in B", difference.step,
                              difference.what, difference.left, difference.right));
  if (const auto parameter = first_parameter_difference(left, right)) {
    lines.push_back(fmt::format(
        "first parameter: {} ({} of {} parameters differ after step {}{})", parameter->name,
        parameter->differing, parameter->count, parameter->step,
        parameter->step > difference.step ? "; --hash-every 1 names the first one of each step"
                                          : ""));
  } else {
    lines.push_back("first parameter: " + no_parameter(left, right));
  }
  const size_t common = std::min(left.metrics.size(), right.metrics.size());
  if (left.metrics.size() != right.metrics.size()) {
    const bool is_same =
        left.metrics[common - 1].parameter_hash == right.metrics[common - 1].parameter_hash;
    lines.push_back(fmt::format(
        "A ends with step {}, B with step {}; after step {} the parameters {}", left.metrics.size(),
        right.metrics.size(), common, is_same ? "are equal" : "differ"));
  }
  if (!left.result || !right.result) {
    lines.push_back(
        fmt::format("likely reason: unknown; {} holds no result.json, so the recipes cannot "
                    "be compared",
                    (left.result ? right : left).folder));
    return lines;
  }
  const auto recipe = recipe_differences(left, right);
  if (!recipe.empty()) {
    lines.emplace_back("likely reason: the recipes differ, and then the bits may:");
    append_some(lines, recipe);
    return lines;
  }
  lines.push_back("likely reason: " + reason_within_equal_recipes(difference));
  const auto machine = map_differences(left.result->machine, right.result->machine);
  if (!machine.empty()) {
    lines.emplace_back("the machines differ:");
    append_some(lines, machine);
  }
  return lines;
}

}  // namespace lockstep::cli
