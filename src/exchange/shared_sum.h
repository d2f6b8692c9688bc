#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "src/exchange/event.h"
#include "src/tree/sum.h"

namespace lockstep::exchange {

/// The sum of one float array per rank, over memory that the ranks share. The arrays are born
/// there: nothing is copied before the sum. Ranks are added in the order of the reduction tree over
/// all of them, so that every rank reads the same bits and every run gives the same.
///
/// Short arrays: every rank adds all of them itself, which takes one exchange of flags; inputs
/// alternate between two places, because a slow rank may still read the last ones. Long arrays: the
/// ranks share the work stretch by stretch and read one result.
class SharedSum {
 public:
  static constexpr uint64_t kMostShort = 8192;  // elements

  /// Waits until `ready`, which becomes true by what other ranks do; may throw.
  using Wait = std::function<void(const std::function<bool()>& ready)>;

  static uint64_t bytes_needed(uint32_t rank_count, uint64_t element_count);

  /// `memory`: bytes_needed() zeroed bytes at a page's start, the same for all ranks.
  /// `has_cores`: every rank has a core of its own, so watching a flag takes nothing from others.
  SharedSum(std::byte* memory, uint32_t rank, uint32_t rank_count, uint64_t element_count,
            bool has_cores, Event& event, Wait wait);

  /// This rank's array, to be filled before the next sum(): another place after each sum() of short
  /// arrays.
  float* input() const { return input_of(rank_, call_ + 1); }

  /// Collective. The sum, valid until this rank calls sum() again.
  const float* sum();

  /// Which ranks have not come to the sum (or, of long arrays, have not done their part) that this
  /// rank waits in.
  std::vector<uint32_t> ranks_behind() const;

 private:
  // One cache line for each rank: what it says about the newest call.
  struct alignas(64) Flag {
    std::atomic<uint64_t> arrived;
    std::atomic<uint64_t> finished;
  };
  struct Head {
    alignas(64) std::atomic<uint64_t> tickets;  // stretches handed out, over all calls
  };

  static uint64_t head_bytes(uint32_t rank_count);
  bool is_short() const { return element_count_ <= kMostShort; }
  Head& head() const { return *reinterpret_cast<Head*>(memory_); }
  Flag& flag(uint32_t rank) const;
  float* input_of(uint32_t rank, uint64_t call) const;
  uint32_t next_behind(std::atomic<uint64_t> Flag::*stage, uint32_t from) const;
  void publish(std::atomic<uint64_t> Flag::*stage);
  void add_stretches();

  std::byte* memory_;
  uint32_t rank_;
  uint32_t rank_count_;
  uint64_t element_count_;
  bool has_cores_;
  Event& event_;
  Wait wait_;
  tree::SumPlan plan_;
  uint64_t call_ = 0;             // the newest one, from 1
  bool waits_for_parts_ = false;  // of long arrays
  std::vector<float> own_sum_;    // of short ones
};

}  // namespace lockstep::exchange
