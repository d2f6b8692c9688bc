#include "src/train/mlp.h"

namespace lockstep::train {

MlpImpl::MlpImpl(const MlpSizes& sizes)
    : dropout_(sizes.dropout), layers_(register_module("layers", torch::nn::ModuleList())) {
  int64_t inputs = sizes.inputs;
  for (uint32_t layer = 1; layer <= sizes.layers; ++layer) {
    const int64_t outputs = layer < sizes.layers ? sizes.width : sizes.outputs;
    layers_->push_back(torch::nn::Linear(inputs, outputs));
    inputs = outputs;
  }
}

torch::Tensor MlpImpl::forward(torch::Tensor inputs) {
  for (size_t layer = 0; layer < layers_->size(); ++layer) {
    inputs = layers_->at<torch::nn::LinearImpl>(layer).forward(inputs);
    if (layer + 1 == layers_->size()) break;
    inputs = torch::relu(inputs);
    if (dropout_ > 0) inputs = torch::dropout(inputs, dropout_, is_training());
  }
  return inputs;
}

torch::Tensor MlpImpl::loss_sum(const torch::Tensor& outputs, const torch::Tensor& targets) {
  namespace F = torch::nn::functional;
  if (targets.scalar_type() == torch::kInt64) {
    return F::cross_entropy(outputs, targets, F::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
  return F::mse_loss(outputs.squeeze(1), targets, F::MSELossFuncOptions().reduction(torch::kSum));
}

}  // namespace lockstep::train
