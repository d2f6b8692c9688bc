#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

#include "lockstep/distributed_data_parallel.h"

namespace lockstep {

namespace internal {
class FusedUpdate;
}

/// torch::optim::AdamW's update (Loshchilov and Hutter 2019) as one pass over the flat parameters
/// (ATen's _fused_adamw_), with the hash of the result taken while it is in cache. Takes LibTorch's
/// own options and keeps LibTorch's own per-parameter state, so it is saved and loaded as
/// torch::optim::AdamW is. A parameter whose .grad() is undefined is skipped: its step count does
/// not advance.
class AdamW : public torch::optim::Optimizer {
 public:
  explicit AdamW(DistributedDataParallel& ddp, torch::optim::AdamWOptions options = {});
  AdamW(DistributedDataParallel& ddp, std::vector<torch::optim::OptimizerParamGroup> groups,
        torch::optim::AdamWOptions defaults = {});
  ~AdamW() override;

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// From now on step() scales the mean so that its norm is at most `max_norm` (as
  /// torch::nn::utils::clip_grad_norm_ does, with the norm that average() returned, in the pass of
  /// the update). 0: off.
  void clip_norm(double max_norm);

 private:
  std::unique_ptr<internal::FusedUpdate> update_;
};

/// torch::optim::SGD's update, with momentum, dampening, Nesterov and weight decay, in one pass.
class SGD : public torch::optim::Optimizer {
 public:
  explicit SGD(DistributedDataParallel& ddp, torch::optim::SGDOptions options);
  SGD(DistributedDataParallel& ddp, std::vector<torch::optim::OptimizerParamGroup> groups,
      torch::optim::SGDOptions defaults);
  ~SGD() override;

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// As AdamW::clip_norm.
  void clip_norm(double max_norm);

 private:
  std::unique_ptr<internal::FusedUpdate> update_;
};

}  // namespace lockstep
