#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "src/train/train_options.h"

namespace lockstep::train {

/// One layer of a GPT (Radford and others 2019): attention and a feed-forward part, each after a
/// layer norm and added to its input. Linear layers have no bias.
class GptLayerImpl : public torch::nn::Module {
 public:
  explicit GptLayerImpl(const GptSizes& sizes);

  torch::Tensor forward(torch::Tensor input);  // (batch, context, width) -> the same

 private:
  int64_t heads_;
  double dropout_;
  torch::nn::LayerNorm attention_norm_{nullptr};
  torch::nn::Linear queries_keys_values_{nullptr};  // (3*width, width)
  torch::nn::Linear projection_{nullptr};           // (width, width)
  torch::nn::LayerNorm feed_forward_norm_{nullptr};
  torch::nn::Linear expand_{nullptr};    // (4*width, width)
  torch::nn::Linear contract_{nullptr};  // (width, 4*width)
};
TORCH_MODULE(GptLayer);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptSizes& sizes);

  /// tokens: (batch, up to context) of int64; returns logits (batch, the same, vocabulary).
  torch::Tensor forward(const torch::Tensor& tokens);

  /// The cross entropy of the targets in nats, summed over all (batch * context) tokens.
  torch::Tensor loss_sum(const torch::Tensor& tokens, const torch::Tensor& targets);

 private:
  double dropout_;
  torch::nn::Embedding token_embedding_{nullptr};     // (vocabulary, width)
  torch::nn::Embedding position_embedding_{nullptr};  // (context, width)
  torch::nn::ModuleList layers_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};  // (vocabulary, width)
};
TORCH_MODULE(Gpt);

/// `count` tokens that the model continues `prompt` with, drawn with the seed at temperature 0.8.
/// The same tokens on every machine that computes the same logits.
std::vector<int64_t> generate(Gpt& model, std::vector<int64_t> prompt, uint64_t count,
                              uint32_t context, uint64_t seed);

}  // namespace lockstep::train
