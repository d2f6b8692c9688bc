#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "src/exchange/shared_memory.h"
#include "src/replica/flat_model.h"
#include "src/replica/group_state.h"

namespace lockstep::internal {

/// How far the copies of a model are apart: the largest absolute difference of any parameter
/// between any two replicas. Every living replica lays its parameters into shared memory and
/// compares all. Made on first use: with averaging on that is when the copies' hashes differ, and
/// never otherwise.
class DriftMeter {
 public:
  DriftMeter(GroupState& group, const FlatModel& model, uint32_t model_index);

  struct Drift {
    double largest = 0;
    std::string parameter;  // the first one, in order of registration, that differs; empty if none
  };

  /// Collective over the living replicas; the n-th call on one belongs to the n-th on the others.
  Drift measure();

 private:
  void make_area();
  std::atomic<uint32_t>& calls_of(uint32_t rank) const;
  std::byte* copy_of(uint32_t rank) const;
  std::vector<uint32_t> ranks_behind() const;
  Drift compare(const std::vector<uint32_t>& ranks) const;

  GroupState& group_;
  const FlatModel& model_;
  uint32_t arena_index_;
  uint64_t copy_bytes_ = 0;
  uint32_t calls_ = 0;
  exchange::Mapping mapping_;
};

}  // namespace lockstep::internal
