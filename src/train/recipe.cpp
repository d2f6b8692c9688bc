#include "src/train/recipe.h"

#include <unistd.h>

#include <array>
#include <string_view>

#include <nlohmann/json.hpp>

#include "src/base/hash.h"
#include "src/launch/worker_environment.h"
#include "src/report/json_number.h"
#include "src/train/train_command_line.h"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr int kFormatVersion = 1;
constexpr std::array<std::string_view, 5> kKernelVariables = {"MKL_", "ONEDNN_", "DNNL_", "ATEN_",
                                                              "OMP_"};

ordered_json model_json(const TrainOptions& options) {
  const GptSizes& gpt = options.gpt;
  return {{"kind", options.model},  {"layers", gpt.layers},
          {"heads", gpt.heads},     {"width", gpt.width},
          {"context", gpt.context}, {"vocabulary", gpt.vocabulary},
          {"dropout", gpt.dropout}, {"parameters", gpt_parameter_count(gpt)}};
}

ordered_json data_json(const TokenData& data) {
  base::Hasher hasher;
  data.walk_bytes(
      [&](std::span<const uint8_t> bytes) { hasher.update(bytes.data(), bytes.size()); });
  return {{"content_hash", base::to_hex(hasher.digest())},
          {"tokens", data.tokens()},
          {"token_bytes", data.token_bytes()},
          {"sequences", data.sequence_count()}};
}

ordered_json optimizer_json(const TrainOptions& options) {
  ordered_json optimizer = {{"kind", word_of(options.optimizer)},
                            {"learning_rate", options.learning_rate},
                            {"weight_decay", options.weight_decay},
                            {"clip_norm", options.clip_norm}};
  if (options.optimizer == OptimizerKind::kSgd) optimizer["momentum"] = options.momentum;
  return optimizer;
}

ordered_json schedule_json(const TrainOptions& options) {
  return {{"steps", options.steps},
          {"epochs", options.epochs},
          {"warmup", options.warmup},
          {"decay", word_of(options.decay)}};
}

ordered_json evaluation_json(const TrainOptions& options, const TokenSplit& data) {
  if (!data.validation) return nullptr;
  ordered_json evaluation = data_json(*data.validation);
  evaluation["microbatch"] = options.evaluation_microbatch;
  return evaluation;
}

ordered_json environment_json(const TrainOptions& options) {
  launch::WorkerVariables worker;
  worker.thread_count = options.threads;
  std::map<std::string, std::string> found;  // by name: the order of the environment says nothing
  for (const std::string& variable : launch::worker_variables(::environ, worker)) {
    for (const std::string_view prefix : kKernelVariables) {
      if (!variable.starts_with(prefix)) continue;
      const size_t equals = variable.find('=');
      found[variable.substr(0, equals)] = variable.substr(equals + 1);
    }
  }
  ordered_json environment = ordered_json::object();
  for (const auto& [name, value] : found) environment[name] = value;
  return environment;
}

}  // namespace

std::string torch_version() { return LOCKSTEP_TORCH_VERSION; }

std::string recipe_json(const TrainOptions& options, const TokenSplit& data) {
  const ordered_json recipe = {{"format_version", kFormatVersion},
                               {"model", model_json(options)},
                               {"data", data_json(data.training)},
                               {"validation", evaluation_json(options, data)},
                               {"seed", options.seed},
                               {"global_batch", options.global_batch},
                               {"microbatch", options.microbatch},
                               {"threads", options.threads},
                               {"precision", word_of(options.precision)},
                               {"averaging", options.averaging},
                               {"optimizer", optimizer_json(options)},
                               {"schedule", schedule_json(options)},
                               {"libtorch", torch_version()},
                               {"environment", environment_json(options)}};
  return recipe.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep::train
