#include "src/tree/sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/base/check.h"

// One function compiled for several instruction sets; the loader picks. Sanitizers start before
// the loader's choice works, so they get the plain one.
#if defined(__x86_64__) && !defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_VECTOR
#endif

namespace lockstep::tree {
namespace {

// Elements per pass: the operands of a few levels fit the first-level cache together.
constexpr size_t kBlock = 1024;

LOCKSTEP_VECTOR void add(float* __restrict out, const float* left, const float* right, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = left[i] + right[i];
}
LOCKSTEP_VECTOR void add(double* __restrict out, const double* left, const double* right,
                         size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = left[i] + right[i];
}
LOCKSTEP_VECTOR void add_onto(float* __restrict right, const float* left, size_t n) {
  for (size_t i = 0; i < n; ++i) right[i] = left[i] + right[i];
}
LOCKSTEP_VECTOR void add_onto(double* __restrict right, const double* left, size_t n) {
  for (size_t i = 0; i < n; ++i) right[i] = left[i] + right[i];
}
LOCKSTEP_VECTOR void append(float* __restrict left, const float* right, size_t n) {
  for (size_t i = 0; i < n; ++i) left[i] = left[i] + right[i];
}
LOCKSTEP_VECTOR void append(double* __restrict left, const double* right, size_t n) {
  for (size_t i = 0; i < n; ++i) left[i] = left[i] + right[i];
}

LOCKSTEP_VECTOR void divide_by(float* values, double count, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) / count);
  }
}
LOCKSTEP_VECTOR void divide_by(double* values, double count, size_t n) {
  for (size_t i = 0; i < n; ++i) values[i] = values[i] / count;
}
LOCKSTEP_VECTOR void multiply_by(float* values, double factor, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) * factor);
  }
}

LOCKSTEP_VECTOR void add_squares(const float* values, size_t n, double* __restrict lanes) {
  for (size_t i = 0; i + 8 <= n; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
}
LOCKSTEP_VECTOR void add_squares(const double* values, size_t n, double* __restrict lanes) {
  for (size_t i = 0; i + 8 <= n; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  }
}

}  // namespace

template <typename T>
void merge(T* out, const T* leaf, std::span<const Operand<T>> operands, size_t element_count) {
  if (leaf == nullptr) {
    if (operands.empty()) return;
    leaf = operands.front().data;
    operands = operands.subspan(1);
  }
  if (operands.empty()) {
    if (out != leaf) std::memcpy(out, leaf, element_count * sizeof(T));
    return;
  }
  for (size_t at = 0; at < element_count; at += kBlock) {
    const size_t n = std::min(kBlock, element_count - at);
    const Operand<T>& first = operands.front();
    // The first addition reads the leaf and writes the output, the rest stay in cache.
    if (out == leaf) {
      first.is_left ? add_onto(out + at, first.data + at, n) : append(out + at, first.data + at, n);
    } else {
      first.is_left ? add(out + at, first.data + at, leaf + at, n)
                    : add(out + at, leaf + at, first.data + at, n);
    }
    for (const Operand<T>& operand : operands.subspan(1)) {
      operand.is_left ? add_onto(out + at, operand.data + at, n)
                      : append(out + at, operand.data + at, n);
    }
  }
}

template <typename T>
void divide(T* values, double count, size_t element_count) {
  // Dividing by a power of two and multiplying by its inverse are the same exact operation.
  int exponent = 0;
  const bool is_power_of_two =
      std::frexp(count, &exponent) == 0.5 && exponent > -1000 && exponent < 1000;
  if constexpr (std::is_same_v<T, float>) {
    if (is_power_of_two) return multiply_by(values, 1.0 / count, element_count);
  }
  divide_by(values, count, element_count);
}

SumPlan::SumPlan(const ReductionTree& tree, std::span<const Node> cover) {
  std::vector<Node> stack;
  uint32_t at = 0;
  for (const Node& node : cover) {
    LOCKSTEP_CHECK(tree.begin(node) == at, tree.begin(node), at);
    at = tree.end(node);
    stack.push_back(node);
    depth_ = std::max<uint32_t>(depth_, static_cast<uint32_t>(stack.size()));
    uint8_t adds = 0;
    while (stack.size() >= 2) {
      const Node right = stack.back();
      const Node left = stack[stack.size() - 2];
      if (tree.is_root(right) || tree.sibling(right) != left) break;
      stack.pop_back();
      stack.back() = tree.parent(left);
      ++adds;
    }
    adds_after_.push_back(adds);
  }
  LOCKSTEP_CHECK(at == tree.leaf_count() && stack.size() == 1, at, tree.leaf_count());
}

template <typename T, typename Finish>
bool SumPlan::run(T* out, std::span<const T* const> inputs, size_t element_count,
                  const Finish& finish) const {
  LOCKSTEP_CHECK(inputs.size() == adds_after_.size(), inputs.size(), adds_after_.size());
  const bool any =
      std::any_of(inputs.begin(), inputs.end(), [](const T* p) { return p != nullptr; });
  if (!any) {
    std::fill_n(out, element_count, T{0});
    return false;
  }
  // A stack of operands: an input is pushed as a pointer; a sum lies in the buffer of its depth.
  // The bottom buffer is the output itself.
  thread_local std::vector<T> buffers;
  thread_local std::vector<const T*> stack;
  buffers.resize(size_t{depth_} * kBlock);
  for (size_t at = 0; at < element_count; at += kBlock) {
    const size_t n = std::min(kBlock, element_count - at);
    stack.clear();
    for (size_t input = 0; input < inputs.size(); ++input) {
      stack.push_back(inputs[input] == nullptr ? nullptr : inputs[input] + at);
      for (uint8_t add_index = 0; add_index < adds_after_[input]; ++add_index) {
        const T* right = stack.back();
        stack.pop_back();
        const T* left = stack.back();
        const size_t level = stack.size() - 1;
        T* sum = level == 0 ? out + at : buffers.data() + level * kBlock;
        if (right == nullptr) continue;
        if (left == nullptr) {
          // Copied down with its place: the buffer above is written again by later sums.
          stack.back() = static_cast<T*>(std::memcpy(sum, right, n * sizeof(T)));
          continue;
        }
        if (sum == left) {
          append(sum, right, n);
        } else if (sum == right) {
          add_onto(sum, left, n);
        } else {
          add(sum, left, right, n);
        }
        stack.back() = sum;
      }
    }
    if (stack.back() != out + at) std::memcpy(out + at, stack.back(), n * sizeof(T));
    finish(out + at, n);
  }
  return true;
}

template <typename T>
bool SumPlan::mean(T* mean, std::span<const T* const> inputs, double count,
                   size_t element_count) const {
  return run(mean, inputs, element_count,
             [count](T* values, size_t n) { divide(values, count, n); });
}

template <typename T>
bool SumPlan::sum(T* out, std::span<const T* const> inputs, size_t element_count) const {
  return run(out, inputs, element_count, [](T*, size_t) {});
}

double sum_in_tree_order(std::span<const double> values) {
  if (values.empty()) return 0.0;
  std::vector<double> level(values.begin(), values.end());
  while (level.size() > 1) {
    const size_t pairs = level.size() / 2;
    for (size_t i = 0; i < pairs; ++i) level[i] = level[2 * i] + level[2 * i + 1];
    if (level.size() % 2 == 1) level[pairs] = level.back();
    level.resize(pairs + level.size() % 2);
  }
  return level.front();
}

template <typename T>
double chunk_of_squares(const T* values, size_t element_count) {
  LOCKSTEP_CHECK(element_count <= kNormChunk, element_count, kNormChunk);
  double lanes[8] = {};
  add_squares(values, element_count, lanes);
  for (size_t i = element_count / 8 * 8; i < element_count; ++i) {
    const double value = static_cast<double>(values[i]);
    lanes[i % 8] += value * value;
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template void merge<float>(float*, const float*, std::span<const Operand<float>>, size_t);
template void merge<double>(double*, const double*, std::span<const Operand<double>>, size_t);
template void divide<float>(float*, double, size_t);
template void divide<double>(double*, double, size_t);
template bool SumPlan::mean<float>(float*, std::span<const float* const>, double, size_t) const;
template bool SumPlan::mean<double>(double*, std::span<const double* const>, double, size_t) const;
template bool SumPlan::sum<float>(float*, std::span<const float* const>, size_t) const;
template bool SumPlan::sum<double>(double*, std::span<const double* const>, size_t) const;
template double chunk_of_squares<float>(const float*, size_t);
template double chunk_of_squares<double>(const double*, size_t);

}  // namespace lockstep::tree
