#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/hash.h"
#include "src/exchange/shared_memory.h"
#include "src/ledger/layout.h"
#include "src/replica/flat_model.h"
#include "src/replica/group_state.h"
#include "src/replica/torch_internals.h"

namespace lockstep::internal {

/// Sizes of one bucket list: the float plane, the double plane and the buffers are cut separately.
struct Bucket {
  Plane plane = Plane::kFloat;
  int64_t begin = 0;  // elements, a multiple of the norm chunk
  int64_t end = 0;
};

std::vector<Bucket> cut_into_buckets(const FlatModel& model, uint64_t bucket_bytes,
                                     uint32_t replica_count);

/// The memory that all replicas of one wrapped model share:
///   head | structure text | ledger | audit hashes | sums of squares | mean | slots of every seat
/// The mean has the shape of a slot. Sized once, for any number of microbatches: pages that no
/// microbatch needs are never touched.
class Arena {
 public:
  struct Head {
    uint64_t magic;
    uint64_t size_bytes;
    base::Hash128 structure;
    uint64_t structure_bytes;
    std::atomic<uint32_t> values_from;  // 1 + rank whose values lie in the mean, at the start
    std::atomic<uint32_t> ready[ledger::kMostReplicas];  // [rank] incarnation that has them
    std::atomic<uint32_t> refused;  // 1: somebody writes why, 2: `refusal` says why
    char refusal[2048];             // what a replica with another model found
    std::atomic<uint32_t> context_round[ledger::kMostReplicas];  // [rank] round of its context
    ContextWord context[ledger::kMostReplicas];  // [rank] of its first microbatch in that round
  };

  enum class Sharing {
    kGroup,  // one arena for all replicas
    kOwn,    // of this replica alone, for one rank
  };

  Arena(GroupState& group, const FlatModel& model, const std::vector<Bucket>& buckets,
        uint32_t index, Sharing sharing);

  Head& head() const { return *reinterpret_cast<Head*>(shared_.data()); }
  std::string structure() const;
  /// Throws what a replica with another model has found, if there is one.
  void check_not_refused() const;
  std::byte* ledger() const { return shared_.data() + ledger_offset_; }
  const ledger::Shape& shape() const { return shape_; }

  /// [rank][parameter] leaf hashes of the audited microbatch.
  uint64_t* audit_hashes(uint32_t rank) const;
  /// [chunk] sums of squares of the mean, float plane first.
  double* chunk_squares() const;

  std::byte* mean() const { return shared_.data() + mean_offset_; }
  /// The mean as this process alone sees it: copy on write.
  std::byte* own_mean() const { return private_mean_.data(); }
  const exchange::Mapping& own_mean_mapping() const { return private_mean_; }
  std::byte* slot(uint32_t index) const {
    return shared_.data() + slots_offset_ + index * slot_bytes_;
  }
  void populate_slot(uint32_t index) const;
  void populate_mean() const;

  /// Gives up the pages of the private mean that this process has written to, however it did: the
  /// kernel's page map tells which they are.
  void discard_private_pages() const;

 private:
  ledger::Shape shape_;
  uint64_t slot_bytes_ = 0;
  uint64_t parameter_count_ = 0;
  uint64_t structure_offset_ = 0, ledger_offset_ = 0, audit_offset_ = 0, squares_offset_ = 0,
           mean_offset_ = 0, slots_offset_ = 0, size_bytes_ = 0;
  exchange::Descriptor memory_;
  exchange::Mapping shared_;
  exchange::Mapping private_mean_;
  exchange::Descriptor page_map_;
};

}  // namespace lockstep::internal
