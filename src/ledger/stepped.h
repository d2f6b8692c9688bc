#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

// Tests only: shared words whose every access is a step of its own. A program that is compiled with
// LOCKSTEP_STEPPED has the ledger use these, so that a schedule can let others run, or a replica
// die, between any two accesses and not just at the named points.

namespace lockstep::ledger {

/// Called before each access. Null: nothing happens.
inline void (*before_access)(bool is_write) = nullptr;
/// Called after each write of a 64-bit word.
inline void (*after_write)(const void* word, uint64_t before, uint64_t after) = nullptr;

template <typename T>
class Stepped {
 public:
  T load(std::memory_order order = std::memory_order_seq_cst) const {
    step(false);
    return value_.load(order);
  }

  /// For those who look on from outside: no step.
  T peek() const { return value_.load(); }

  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    step(true);
    const T before = value_.load();
    value_.store(value, order);
    tell(before, value);
  }

  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) {
    step(true);
    const T before = expected;
    if (!value_.compare_exchange_strong(expected, desired, success, failure)) return false;
    tell(before, desired);
    return true;
  }

  T fetch_or(T bits, std::memory_order order = std::memory_order_seq_cst) {
    step(true);
    return value_.fetch_or(bits, order);
  }

 private:
  static void step(bool is_write) {
    if (before_access != nullptr) before_access(is_write);
  }

  void tell(T before, T after) const {
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (after_write != nullptr) after_write(this, before, after);
    }
  }

  std::atomic<T> value_;
};

}  // namespace lockstep::ledger
