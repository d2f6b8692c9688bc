#pragma once

#include <torch/torch.h>

#include "src/train/train_options.h"

namespace lockstep::train {

/// Linear layers with a ReLU between each two (a multilayer perceptron).
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpSizes& sizes);

  /// inputs: (rows, sizes.inputs); returns logits (rows, classes), or (rows, 1) for regression.
  torch::Tensor forward(torch::Tensor inputs);

  /// Summed over the rows: the cross entropy in nats of `targets`, (rows) of int64; for regression
  /// the squared error against `targets`, (rows) of the inputs' type.
  static torch::Tensor loss_sum(const torch::Tensor& outputs, const torch::Tensor& targets);

 private:
  double dropout_;
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Mlp);

}  // namespace lockstep::train
