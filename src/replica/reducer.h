#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/ledger/ledger.h"
#include "src/replica/arena.h"
#include "src/replica/flat_model.h"
#include "src/tree/sum.h"

namespace lockstep::internal {

/// Turns the live partials of a finished batch into the one mean, bucket by bucket. Inputs never
/// change until the commit and the output is a pure function of them: whoever does it, and again
/// after a death, the same bytes result.
class Reducer {
 public:
  Reducer(const FlatModel& model, Arena& arena, const std::vector<Bucket>& buckets);

  /// REQUIRES: the batch is done. `count`: the denominator; `backward_count`: microbatches that
  /// ended with a backward, the denominator of buffers. False: the others have finished the step
  /// already.
  [[nodiscard]] bool start(const ledger::Ledger& ledger, double count, uint32_t backward_count);

  void reduce(uint32_t bucket);

  /// Bits of all partials together.
  const std::vector<uint64_t>& touched() const { return touched_; }

  /// Sum of squares of the whole mean, chunks in tree order. REQUIRES: all buckets are reduced.
  double sum_of_squares() const;

  uint64_t bytes_of(uint32_t bucket) const;

 private:
  template <typename T>
  void reduce_plane(const Bucket& bucket);
  void reduce_buffers();
  template <typename T>
  std::vector<const T*> inputs(Plane plane, int64_t offset, uint32_t bit) const;
  bool part_has(size_t part, uint32_t bit) const;

  const FlatModel& model_;
  Arena& arena_;
  const std::vector<Bucket>& buckets_;
  std::vector<const Entry*> by_place_[2];  // [kFloat, kDouble] parameters in order of offset
  const ledger::Ledger* ledger_ = nullptr;
  std::vector<ledger::CoverPart> parts_;
  std::optional<tree::SumPlan> plan_;
  std::vector<uint64_t> touched_;
  std::vector<uint64_t> touched_by_all_;
  double count_ = 1;
  uint32_t backward_count_ = 1;
};

}  // namespace lockstep::internal
