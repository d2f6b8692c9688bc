#include "src/exchange/shared_sum.h"

#include <sched.h>

#include <algorithm>

#include "src/exchange/control.h"
#include "src/exchange/shared_memory.h"

namespace lockstep::exchange {
namespace {

constexpr uint64_t kStretch = 65536;  // elements that a rank adds at a time
constexpr int kLooks = 4000;          // at the others' flags before this rank goes to sleep

uint64_t stretch_count(uint64_t element_count) { return (element_count + kStretch - 1) / kStretch; }

uint64_t array_bytes(uint64_t element_count) {
  return round_to_pages(element_count * sizeof(float));
}

std::vector<tree::Node> all_leaves(uint32_t rank_count) {
  const tree::ReductionTree tree(rank_count);
  std::vector<tree::Node> leaves;
  for (uint32_t rank = 0; rank < rank_count; ++rank) leaves.push_back(tree.leaf(rank));
  return leaves;
}

}  // namespace

uint64_t SharedSum::head_bytes(uint32_t rank_count) {
  return round_to_pages(sizeof(Head) + sizeof(Flag) * rank_count);
}

uint64_t SharedSum::bytes_needed(uint32_t rank_count, uint64_t element_count) {
  // Short: two inputs a rank. Long: one a rank, and the result.
  const uint64_t arrays =
      element_count <= kMostShort ? uint64_t{2} * rank_count : uint64_t{rank_count} + 1;
  return head_bytes(rank_count) + arrays * array_bytes(element_count);
}

SharedSum::SharedSum(std::byte* memory, uint32_t rank, uint32_t rank_count, uint64_t element_count,
                     bool has_cores, Event& event, Wait wait)
    : memory_(memory),
      rank_(rank),
      rank_count_(rank_count),
      element_count_(element_count),
      has_cores_(has_cores),
      event_(event),
      wait_(std::move(wait)),
      plan_(tree::ReductionTree(rank_count), all_leaves(rank_count)) {
  if (is_short()) own_sum_.resize(element_count);
}

SharedSum::Flag& SharedSum::flag(uint32_t rank) const {
  return reinterpret_cast<Flag*>(memory_ + sizeof(Head))[rank];
}

float* SharedSum::input_of(uint32_t rank, uint64_t call) const {
  const uint64_t place = is_short() ? 2 * uint64_t{rank} + call % 2 : rank;
  return reinterpret_cast<float*>(memory_ + head_bytes(rank_count_) +
                                  place * array_bytes(element_count_));
}

const float* SharedSum::sum() {
  ++call_;
  waits_for_parts_ = false;
  publish(&Flag::arrived);
  if (!is_short()) {
    add_stretches();
    waits_for_parts_ = true;
    publish(&Flag::finished);
    return input_of(rank_count_, call_);
  }
  const float* inputs[kMaxReplicas];
  for (uint32_t rank = 0; rank < rank_count_; ++rank) inputs[rank] = input_of(rank, call_);
  plan_.sum<float>(own_sum_.data(), {inputs, rank_count_}, element_count_);
  return own_sum_.data();
}

// Every rank draws tickets until one is beyond the last stretch, so a call uses up exactly
// stretches + ranks of them, and none draws for the next call before all have arrived there.
void SharedSum::add_stretches() {
  const uint64_t count = stretch_count(element_count_);
  const uint64_t first_ticket = (call_ - 1) * (count + rank_count_);
  std::vector<const float*> inputs(rank_count_);
  float* result = input_of(rank_count_, call_);
  for (;;) {
    const uint64_t stretch = head().tickets.fetch_add(1, std::memory_order_relaxed) - first_ticket;
    if (stretch >= count) return;
    const uint64_t begin = stretch * kStretch;
    for (uint32_t rank = 0; rank < rank_count_; ++rank)
      inputs[rank] = input_of(rank, call_) + begin;
    plan_.sum<float>(result + begin, inputs, std::min(kStretch, element_count_ - begin));
  }
}

// The first rank from `from` on that has not come to the stage; rank_count_ where all have.
uint32_t SharedSum::next_behind(std::atomic<uint64_t> Flag::*stage, uint32_t from) const {
  uint32_t rank = from;
  while (rank < rank_count_ && (flag(rank).*stage).load(std::memory_order_acquire) >= call_) ++rank;
  return rank;
}

std::vector<uint32_t> SharedSum::ranks_behind() const {
  const auto stage = waits_for_parts_ ? &Flag::finished : &Flag::arrived;
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; (rank = next_behind(stage, rank)) < rank_count_; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

void SharedSum::publish(std::atomic<uint64_t> Flag::*stage) {
  (flag(rank_).*stage).store(call_, std::memory_order_release);
  event_.notify_sleepers();
  const auto all_are_there = [&] { return next_behind(stage, 0) == rank_count_; };
  for (int look = 0; look < kLooks; ++look) {
    if (all_are_there()) return;
    // Where ranks share cores, the one that is awaited may need this one.
    if (has_cores_) {
      pause_cpu();
    } else {
      ::sched_yield();
    }
  }
  wait_(all_are_there);
}

}  // namespace lockstep::exchange
