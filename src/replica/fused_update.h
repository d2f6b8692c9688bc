#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/torch.h>

#include "src/base/hash.h"
#include "src/replica/replica_impl.h"

namespace lockstep::internal {

/// A stretch of a flat tensor that one call of a fused kernel can update: neighbouring parameters
/// of one dtype, parameter group and step count whose gradients lie in the mean, or one parameter
/// alone. Stretches start and end at multiples of 64 bytes: a kernel's scalar tail would give other
/// bits.
struct Segment {
  size_t flat = 0;         // index of the flat tensor
  int64_t begin = 0;       // elements
  int64_t end = 0;         // elements, padding included
  torch::Tensor gradient;  // [end - begin], in the flat tensor's dtype
  size_t group = 0;        // parameter group
  int64_t step = 0;        // of AdamW, after this update
  bool is_first = false;   // of SGD: no momentum yet
};

/// What our fused optimizers have in common: flat state, segments, chunks small enough that the
/// hash of the updated parameters is taken while they are in cache.
class FusedUpdate {
 public:
  /// `state_count`: flat state tensors per flat parameter tensor (AdamW 2 or 3, SGD 0 or 1).
  FusedUpdate(std::shared_ptr<ReplicaImpl> replica, size_t state_count);

  size_t state_count() const { return states_.size(); }
  void clip_norm(double max_norm) { max_norm_ = max_norm; }

  /// Parameter groups by tensor; parameters of the optimizer that the model does not hold are
  /// refused.
  void set_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups);

  /// What a parameter's state says: its step count after this update, and whether it has none yet.
  struct Progress {
    int64_t step = 0;
    bool is_first = false;
  };

  /// Updates all parameters whose .grad() is defined. `progress(parameter)` is asked once for each
  /// of these; `kernel` updates one chunk: parameters, gradients, states (1-d, equal sizes).
  void run(const std::function<Progress(const Entry&)>& progress,
           const std::function<void(const Segment&, torch::Tensor, torch::Tensor,
                                    const std::vector<torch::Tensor>&)>& kernel);

  /// Makes `state` a view of flat state number `which` for the parameter, in its shape and strides;
  /// with the values that it had, or zeros.
  void adopt(torch::Tensor& state, const Entry& entry, size_t which) const;

  ReplicaImpl& replica() { return *replica_; }
  const FlatModel& model() const { return replica_->model(); }
  /// The entry of a tensor of this model. Throws Error(kUsage) for other tensors.
  const Entry& entry_of(const torch::Tensor& tensor) const;

 private:
  std::vector<Segment> segments(const std::function<Progress(const Entry&)>& progress);
  torch::Tensor padded_gradient(const Entry& entry) const;
  int64_t padded_end(const Entry& entry) const;

  std::shared_ptr<ReplicaImpl> replica_;
  std::vector<std::vector<torch::Tensor>> states_;  // [state][flat]
  std::unordered_map<const void*, size_t> group_of_;
  std::vector<std::vector<const Entry*>> by_place_;  // [flat], in order of offset
  double max_norm_ = 0;
};

}  // namespace lockstep::internal
