#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/tree/tree.h"

// The only code of lockstep that adds (design.md section 3, rules 2, 3 and 5). Every addition is
// one IEEE operation in the order of the tree: no fused multiply-add, no reassociation. Vector
// width does not show in the result, since lanes are independent elements.

namespace lockstep::tree {

/// A partial that is merged with what has been summed so far: left + right, in this order. (For
/// numbers the order of two operands does not matter; for which NaN survives it does.)
template <typename T>
struct Operand {
  const T* data = nullptr;
  bool is_left = true;  // stands left of the sum so far
};

/// out[i] = the leaf, merged with each operand in turn. `leaf` may be null (absent: not zero, but
/// an identity); then the first operand starts the sum. With nothing at all, out is not written.
/// `out` may be `leaf`, and must not overlap anything else. T: float or double.
template <typename T>
void merge(T* out, const T* leaf, std::span<const Operand<T>> operands, size_t element_count);

/// The additions that turn a cover of 0 .. K-1 into the root, compiled once per cover: which
/// operand is pushed, and how often the top two are added after it.
class SumPlan {
 public:
  /// `cover`: disjoint canonical nodes that together cover all leaves, from left to right.
  SumPlan(const ReductionTree& tree, std::span<const Node> cover);

  size_t input_count() const { return adds_after_.size(); }

  /// mean[i] = T(double(sum of inputs) / count) for i < element_count; inputs[j] belongs to
  /// cover[j] and is null where absent. False, and zeros in mean, where all are absent.
  template <typename T>
  bool mean(T* mean, std::span<const T* const> inputs, double count, size_t element_count) const;

  /// The plain sum, as above.
  template <typename T>
  bool sum(T* out, std::span<const T* const> inputs, size_t element_count) const;

 private:
  template <typename T, typename Finish>
  bool run(T* out, std::span<const T* const> inputs, size_t element_count,
           const Finish& finish) const;

  std::vector<uint8_t> adds_after_;  // [input]
  uint32_t depth_ = 0;               // most operands on the stack at once
};

/// Adds K doubles in the order of the tree over K leaves.
double sum_in_tree_order(std::span<const double> values);

inline constexpr size_t kNormChunk = 4096;

/// The sum of squares of up to kNormChunk elements: element i in lane i mod 8, lanes folded
/// ((0+1)+(2+3))+((4+5)+(6+7)), in double. Missing elements count as zeros.
template <typename T>
double chunk_of_squares(const T* values, size_t element_count);

/// float(double(sum) / count), the one division of a step.
template <typename T>
void divide(T* values, double count, size_t element_count);

}  // namespace lockstep::tree
