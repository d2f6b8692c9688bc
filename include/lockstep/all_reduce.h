#pragma once

#include <cstdint>
#include <memory>

#include <torch/torch.h>

#include "lockstep/group.h"

namespace lockstep {

/// Sums one float32 array per replica, beside training: counts, statistics, a learning curve. Every
/// replica reads the same bits: ranks are added in a fixed order, whoever arrives first. Unlike the
/// gradients of a DistributedDataParallel, such a sum depends on how many replicas there are, and
/// it does not survive the death of one of them.
///
/// The arrays lie in memory that the replicas share, so nothing is copied: fill `input()`, call
/// `sum()`. Not for use by several threads at once.
class AllReduce {
 public:
  /// Collective: all replicas make it with the same size, in the same order among models and other
  /// AllReduces. 1 <= element_count. Throws Error(kUsage), Error(kPeer).
  AllReduce(const Group& group, int64_t element_count);
  ~AllReduce();
  AllReduce(const AllReduce&) = delete;
  AllReduce& operator=(const AllReduce&) = delete;

  /// This replica's array, (element_count) float32, with any content. To be filled anew before each
  /// sum(): what it refers to may be another place after one.
  const torch::Tensor& input() const;

  /// Collective, and never within a loop over microbatches, whose number differs between replicas.
  /// The sum over all ranks, (element_count) float32, to be read until the next sum(). Throws
  /// Error(kPeer) when a replica has died, Error(kUsage) within such a loop.
  const torch::Tensor& sum();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
