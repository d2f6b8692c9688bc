#include "src/train/workload.h"

#include <utility>

#include "src/train/gpt.h"
#include "src/train/mlp.h"
#include "src/train/training_data.h"

namespace lockstep::train {
namespace {

// Tensors are made afresh for each microbatch: they start at multiples of 64 bytes whoever computes
// it.

class GptWorkload : public Workload {
 public:
  GptWorkload(const TrainOptions& options, TrainingData data)
      : Workload(train::sample_count(data), validation_sample_count(data)),
        data_(std::get<TokenSplit>(std::move(data))),
        seed_(options.seed),
        model_(options.gpt) {}

  torch::nn::Module& model() override { return *model_; }

  Loss loss(Part part, const std::vector<size_t>& samples) override {
    const TokenData& data = part == Part::kTraining ? data_.training : *data_.validation;
    const auto rows = static_cast<int64_t>(samples.size());
    const auto context = static_cast<int64_t>(data.context());
    const auto inputs = torch::empty({rows, context}, torch::kInt64);
    const auto targets = torch::empty({rows, context}, torch::kInt64);  // the next token of each
    for (int64_t row = 0; row < rows; ++row) {
      data.copy_sequence(samples[static_cast<size_t>(row)],
                         inputs.data_ptr<int64_t>() + row * context,
                         targets.data_ptr<int64_t>() + row * context);
    }
    return {model_->loss_sum(inputs, targets), static_cast<double>(targets.numel()), std::nullopt};
  }

  // Continues the first held-out (or first) sequence.
  std::string generate(uint64_t count) override {
    const TokenData& data = data_.validation ? *data_.validation : data_.training;
    std::vector<int64_t> inputs(data.context());
    std::vector<int64_t> targets(data.context());
    data.copy_sequence(0, inputs.data(), targets.data());
    inputs.resize(std::min<size_t>(inputs.size(), 64));
    const auto tokens = train::generate(model_, inputs, count, data.context(), seed_);
    std::string text;
    for (const auto& list : {inputs, tokens}) {
      for (int64_t token : list) {
        if (data.token_bytes() == 1) {
          text += static_cast<char>(token);
        } else {
          text += std::to_string(token) + " ";
        }
      }
    }
    return text;
  }

 private:
  TokenSplit data_;
  uint64_t seed_;
  Gpt model_;
};

class MlpWorkload : public Workload {
 public:
  MlpWorkload(const TrainOptions& options, TrainingData data)
      : Workload(train::sample_count(data), validation_sample_count(data)),
        data_(std::get<RowSplit>(std::move(data))),
        model_(options.mlp) {}

  torch::nn::Module& model() override { return *model_; }

  Loss loss(Part part, const std::vector<size_t>& samples) override {
    const RowData& data = part == Part::kTraining ? data_.training : *data_.validation;
    const auto rows = static_cast<int64_t>(samples.size());
    const int64_t width = data.input_count();
    const auto inputs = torch::empty({rows, width});
    for (int64_t row = 0; row < rows; ++row) {
      data.copy_inputs(samples[static_cast<size_t>(row)], inputs.data_ptr<float>() + row * width);
    }
    const auto targets =
        data.task() == Task::kClassification ? classes(data, samples) : values(data, samples);
    const auto outputs = model_->forward(inputs);
    Loss loss{MlpImpl::loss_sum(outputs, targets), static_cast<double>(rows), std::nullopt};
    if (data.task() == Task::kClassification) {
      const torch::NoGradGuard no_grad;
      loss.correct = outputs.argmax(1).eq(targets).sum().item<double>();
    }
    return loss;
  }

 private:
  static torch::Tensor classes(const RowData& data, const std::vector<size_t>& samples) {
    const auto targets = torch::empty({static_cast<int64_t>(samples.size())}, torch::kInt64);
    auto* to = targets.data_ptr<int64_t>();
    for (const size_t sample : samples) *to++ = data.target_class(sample);
    return targets;
  }

  static torch::Tensor values(const RowData& data, const std::vector<size_t>& samples) {
    const auto targets = torch::empty({static_cast<int64_t>(samples.size())});
    auto* to = targets.data_ptr<float>();
    for (const size_t sample : samples) *to++ = data.target_value(sample);
    return targets;
  }

  RowSplit data_;
  Mlp model_;
};

}  // namespace

std::unique_ptr<Workload> make_workload(TrainOptions& options) {
  TrainingData data = load_training_data(options);
  torch::manual_seed(options.seed);
  if (options.model == ModelKind::kGpt) {
    return std::make_unique<GptWorkload>(options, std::move(data));
  }
  return std::make_unique<MlpWorkload>(options, std::move(data));
}

}  // namespace lockstep::train
