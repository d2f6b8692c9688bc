#include "src/replica/reducer.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/tree/sum.h"

namespace lockstep::internal {
namespace {

bool has_bit(const std::vector<uint64_t>& words, uint32_t bit) {
  return (words[bit / 64] >> (bit % 64) & 1) != 0;
}

}  // namespace

Reducer::Reducer(const FlatModel& model, Arena& arena, const std::vector<Bucket>& buckets)
    : model_(model), arena_(arena), buckets_(buckets) {
  for (const Entry& entry : model.parameters()) {
    by_place_[static_cast<size_t>(entry.plane)].push_back(&entry);
  }
  for (auto& list : by_place_) {
    std::sort(list.begin(), list.end(),
              [](const Entry* left, const Entry* right) { return left->offset < right->offset; });
  }
}

bool Reducer::start(const ledger::Ledger& ledger, double count, uint32_t backward_count) {
  ledger_ = &ledger;
  count_ = count;
  backward_count_ = backward_count;
  parts_ = ledger.cover();
  if (parts_.empty()) return false;
  std::vector<tree::Node> nodes;
  for (const auto& part : parts_) nodes.push_back(part.node);
  plan_.emplace(tree::ReductionTree(ledger.microbatch_count()), nodes);
  const size_t words = arena_.shape().touched_words;
  touched_.assign(words, 0);
  touched_by_all_.assign(words, ~uint64_t{0});
  for (const auto& part : parts_) {
    const auto part_words = ledger.touched(part.slot);
    for (size_t i = 0; i < words; ++i) {
      const uint64_t word = part_words[i].load(std::memory_order_relaxed);
      touched_[i] |= word;
      touched_by_all_[i] &= word;
    }
  }
  return true;
}

bool Reducer::part_has(size_t part, uint32_t bit) const {
  const auto words = ledger_->touched(parts_[part].slot);
  return (words[bit / 64].load(std::memory_order_relaxed) >> (bit % 64) & 1) != 0;
}

template <typename T>
std::vector<const T*> Reducer::inputs(Plane plane, int64_t offset, uint32_t bit) const {
  std::vector<const T*> inputs(parts_.size(), nullptr);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (bit != UINT32_MAX && !part_has(i, bit)) continue;
    const std::byte* start = arena_.slot(parts_[i].slot) + model_.plane_offset_bytes(plane);
    inputs[i] = reinterpret_cast<const T*>(start) + offset;
  }
  return inputs;
}

void Reducer::reduce(uint32_t index) {
  const Bucket& bucket = buckets_[index];
  switch (bucket.plane) {
    case Plane::kFloat: return reduce_plane<float>(bucket);
    case Plane::kDouble: return reduce_plane<double>(bucket);
    default: return reduce_buffers();
  }
}

template <typename T>
void Reducer::reduce_plane(const Bucket& bucket) {
  T* mean = reinterpret_cast<T*>(arena_.mean() + model_.plane_offset_bytes(bucket.plane));
  const auto& entries = by_place_[static_cast<size_t>(bucket.plane)];
  // Entries that overlap [begin, end).
  auto first = std::upper_bound(
      entries.begin(), entries.end(), bucket.begin,
      [](int64_t at, const Entry* entry) { return at < entry->offset + entry->numel; });
  auto last = first;
  bool all_touched = true;
  for (; last != entries.end() && (*last)->offset < bucket.end; ++last) {
    all_touched = all_touched && has_bit(touched_by_all_, (*last)->bit);
  }
  const auto size = static_cast<size_t>(bucket.end - bucket.begin);
  if (all_touched) {
    // Padding is zero in every slot, so the whole bucket is one stretch.
    plan_->mean<T>(mean + bucket.begin, inputs<T>(bucket.plane, bucket.begin, UINT32_MAX), count_,
                   size);
  } else {
    std::fill_n(mean + bucket.begin, size, T{0});
    for (; first != last; ++first) {
      const Entry& entry = **first;
      const int64_t begin = std::max(entry.offset, bucket.begin);
      const int64_t end = std::min(entry.offset + entry.numel, bucket.end);
      if (begin >= end) continue;
      plan_->mean<T>(mean + begin, inputs<T>(bucket.plane, begin, entry.bit), count_,
                     static_cast<size_t>(end - begin));
    }
  }
  double* squares = arena_.chunk_squares();
  if (bucket.plane == Plane::kDouble)
    squares += model_.plane_size(Plane::kFloat) / tree::kNormChunk;
  for (int64_t at = bucket.begin; at < bucket.end; at += tree::kNormChunk) {
    squares[at / tree::kNormChunk] = tree::chunk_of_squares<T>(mean + at, tree::kNormChunk);
  }
}

void Reducer::reduce_buffers() {
  for (const Entry& entry : model_.buffers()) {
    if (!has_bit(touched_, entry.bit)) continue;
    std::byte* plane = arena_.mean() + model_.plane_offset_bytes(entry.plane);
    if (entry.plane == Plane::kBuffers) {
      plan_->mean<double>(reinterpret_cast<double*>(plane) + entry.offset,
                          inputs<double>(entry.plane, entry.offset, entry.bit),
                          static_cast<double>(backward_count_), static_cast<size_t>(entry.numel));
      continue;
    }
    const uint8_t* value = nullptr;
    for (const uint8_t* input : inputs<uint8_t>(entry.plane, entry.offset, entry.bit)) {
      if (input == nullptr) continue;
      if (value != nullptr && std::memcmp(value, input, static_cast<size_t>(entry.numel)) != 0) {
        const_cast<ledger::Ledger*>(ledger_)->fail(
            ledger::FailureKind::kOther, UINT32_MAX, 0,
            "buffer " + entry.name + " (" + c10::toString(entry.tensor.scalar_type()) +
                ") was changed to different values by different microbatches; only floating-point "
                "buffers can be averaged");
      }
      value = input;
    }
    std::memcpy(reinterpret_cast<uint8_t*>(plane) + entry.offset, value,
                static_cast<size_t>(entry.numel));
  }
}

double Reducer::sum_of_squares() const {
  const auto chunks = static_cast<size_t>(
      (model_.plane_size(Plane::kFloat) + model_.plane_size(Plane::kDouble)) / tree::kNormChunk);
  return tree::sum_in_tree_order({arena_.chunk_squares(), chunks});
}

uint64_t Reducer::bytes_of(uint32_t index) const {
  const Bucket& bucket = buckets_[index];
  const uint64_t element = bucket.plane == Plane::kFloat ? 4 : 8;
  return static_cast<uint64_t>(bucket.end - bucket.begin) * element * (parts_.size() + 1);
}

}  // namespace lockstep::internal
