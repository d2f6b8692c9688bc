#include "src/train/train_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::train {

double learning_rate_at(const TrainOptions& options, uint64_t step, uint64_t step_count) {
  const double peak = options.learning_rate;
  if (step < options.warmup) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  }
  if (options.decay == Decay::kNone) return peak;
  if (step >= step_count) return 0;
  const double done =
      static_cast<double>(step - options.warmup) / static_cast<double>(step_count - options.warmup);
  if (options.decay == Decay::kLinear) return peak * (1 - done);
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

uint64_t gpt_parameter_count(const GptSizes& sizes) {
  const uint64_t width = sizes.width;
  const uint64_t norms = 2 * (2 * width);
  const uint64_t attention = 3 * width * width + width * width;
  const uint64_t feed_forward = 4 * width * width + 4 * width * width;
  const uint64_t embeddings = (uint64_t{sizes.vocabulary} + sizes.context) * width;
  const uint64_t head = sizes.vocabulary * width;
  return embeddings + sizes.layers * (norms + attention + feed_forward) + 2 * width + head;
}

uint64_t mlp_parameter_count(const MlpSizes& sizes) {
  uint64_t count = 0;
  uint64_t inputs = sizes.inputs;
  for (uint32_t layer = 1; layer <= sizes.layers; ++layer) {
    const uint64_t outputs = layer < sizes.layers ? sizes.width : sizes.outputs;
    count += (inputs + 1) * outputs;
    inputs = outputs;
  }
  return count;
}

uint64_t parameter_count(const TrainOptions& options) {
  return options.model == ModelKind::kGpt ? gpt_parameter_count(options.gpt)
                                          : mlp_parameter_count(options.mlp);
}

bool has_classes(const TrainOptions& options) {
  return options.model == ModelKind::kMlp && options.mlp.task == Task::kClassification;
}

uint64_t microbatch_count(const TrainOptions& options) {
  return (options.global_batch - 1) / options.microbatch + 1;
}

}  // namespace lockstep::train
