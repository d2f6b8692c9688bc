#include "src/train/gpt.h"

#include <cmath>

namespace lockstep::train {
namespace {

namespace nn = torch::nn;

nn::Linear linear(int64_t inputs, int64_t outputs) {
  return nn::Linear(nn::LinearOptions(inputs, outputs).bias(false));
}

torch::Tensor drop(const torch::Tensor& input, double probability, bool training) {
  return probability > 0 ? torch::dropout(input, probability, training) : input;
}

}  // namespace

GptLayerImpl::GptLayerImpl(const GptSizes& sizes) : heads_(sizes.heads), dropout_(sizes.dropout) {
  const int64_t width = sizes.width;
  attention_norm_ = register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  queries_keys_values_ = register_module("queries_keys_values", linear(width, 3 * width));
  projection_ = register_module("projection", linear(width, width));
  feed_forward_norm_ =
      register_module("feed_forward_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  expand_ = register_module("expand", linear(width, 4 * width));
  contract_ = register_module("contract", linear(4 * width, width));
}

torch::Tensor GptLayerImpl::forward(torch::Tensor input) {
  const int64_t batch = input.size(0);
  const int64_t length = input.size(1);
  const int64_t width = input.size(2);
  auto parts = queries_keys_values_(attention_norm_(input)).split(width, -1);
  for (auto& part : parts) {
    part = part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
  }
  const auto attended = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  const auto joined = attended.transpose(1, 2).reshape({batch, length, width});
  input = input + drop(projection_(joined), dropout_, is_training());
  const auto fed = contract_(at::gelu(expand_(feed_forward_norm_(input))));
  return input + drop(fed, dropout_, is_training());
}

GptImpl::GptImpl(const GptSizes& sizes) : dropout_(sizes.dropout) {
  const int64_t width = sizes.width;
  token_embedding_ = register_module("token_embedding", nn::Embedding(sizes.vocabulary, width));
  position_embedding_ = register_module("position_embedding", nn::Embedding(sizes.context, width));
  layers_ = register_module("layers", nn::ModuleList());
  for (uint32_t layer = 0; layer < sizes.layers; ++layer) layers_->push_back(GptLayer(sizes));
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  head_ = register_module("head", linear(width, sizes.vocabulary));

  // GPT-2's initial values: small normal weights, smaller where a layer adds to the residual
  // stream.
  const torch::NoGradGuard no_grad;
  const double residual = 0.02 / std::sqrt(2.0 * sizes.layers);
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (name.find("norm") != std::string::npos) continue;
    const bool adds =
        name.find("projection") != std::string::npos || name.find("contract") != std::string::npos;
    item.value().normal_(0.0, adds ? residual : 0.02);
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  const auto positions = torch::arange(tokens.size(1), torch::kInt64);
  auto hidden = token_embedding_(tokens) + position_embedding_(positions);
  hidden = drop(hidden, dropout_, is_training());
  for (const auto& layer : *layers_) hidden = layer->as<GptLayer>()->forward(hidden);
  return head_(norm_(hidden));
}

torch::Tensor GptImpl::loss_sum(const torch::Tensor& tokens, const torch::Tensor& targets) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(forward(tokens).flatten(0, 1), targets.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum));
}

std::vector<int64_t> generate(Gpt& model, std::vector<int64_t> prompt, uint64_t count,
                              uint32_t context, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<int64_t> tokens = std::move(prompt);
  std::vector<int64_t> generated;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t length = std::min<size_t>(tokens.size(), context);
    const auto input = torch::tensor(
        std::vector<int64_t>(tokens.end() - static_cast<int64_t>(length), tokens.end()));
    const auto logits = model->forward(input.unsqueeze(0)).select(1, -1).squeeze(0) / 0.8;
    const auto next =
        torch::multinomial(torch::softmax(logits, -1), 1, /*replacement=*/false, generator);
    tokens.push_back(next.item<int64_t>());
    generated.push_back(tokens.back());
  }
  if (was_training) model->train();
  return generated;
}

}  // namespace lockstep::train
