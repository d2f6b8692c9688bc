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

ordered_json gpt_json(const GptSizes& gpt) {
  return {{"kind", word_of(ModelKind::kGpt)},
          {"layers", gpt.layers},
          {"heads", gpt.heads},
          {"width", gpt.width},
          {"context", gpt.context},
          {"vocabulary", gpt.vocabulary},
          {"dropout", gpt.dropout},
          {"parameters", gpt_parameter_count(gpt)}};
}

ordered_json mlp_json(const MlpSizes& mlp) {
  ordered_json json = {{"kind", word_of(ModelKind::kMlp)},
                       {"task", word_of(mlp.task)},
                       {"layers", mlp.layers},
                       {"inputs", mlp.inputs},
                       {"outputs", mlp.outputs},
                       {"parameters", mlp_parameter_count(mlp)}};
  if (mlp.layers > 1) json.update({{"width", mlp.width}, {"dropout", mlp.dropout}});
  return json;
}

template <typename Data>
std::string content_hash(const Data& data) {
  base::Hasher hasher;
  data.walk_bytes(
      [&](std::span<const uint8_t> bytes) { hasher.update(bytes.data(), bytes.size()); });
  return base::to_hex(hasher.digest());
}

ordered_json data_json(const TokenData& data) {
  return {{"content_hash", content_hash(data)},
          {"tokens", data.tokens()},
          {"token_bytes", data.token_bytes()},
          {"sequences", data.sequence_count()}};
}

ordered_json data_json(const RowData& data) {
  return {{"content_hash", content_hash(data)},
          {"rows", data.row_count()},
          {"inputs", data.input_count()}};
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

template <typename Split>
ordered_json evaluation_json(const TrainOptions& options, const Split& data) {
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

std::string recipe_json(const TrainOptions& options, const TrainingData& data) {
  const bool is_gpt = options.model == ModelKind::kGpt;
  const auto visit = [&](const auto& split) {
    return std::pair(data_json(split.training), evaluation_json(options, split));
  };
  const auto [training, validation] = std::visit(visit, data);
  const ordered_json recipe = {{"format_version", kFormatVersion},
                               {"model", is_gpt ? gpt_json(options.gpt) : mlp_json(options.mlp)},
                               {"data", training},
                               {"validation", validation},
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
