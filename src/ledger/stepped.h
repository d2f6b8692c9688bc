#pragma once

#include <atomic>

// Tests only: shared words whose every access is a step of its own. A program that is compiled with
// LOCKSTEP_STEPPED has the ledger use these, so that a schedule can let others run, or a replica
// die, between any two accesses and not just at the named points.

namespace lockstep::ledger {

/// Called before each access. Null: nothing happens.
inline void (*before_access)(bool is_write) = nullptr;

template <typename T>
class Stepped {
 public:
  T load(std::memory_order order = std::memory_order_seq_cst) const {
    step(false);
    return value_.load(order);
  }

  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    step(true);
    value_.store(value, order);
  }

  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order success = std::memory_order_seq_cst,
                               std::memory_order failure = std::memory_order_seq_cst) {
    step(true);
    return value_.compare_exchange_strong(expected, desired, success, failure);
  }

  T fetch_or(T bits, std::memory_order order = std::memory_order_seq_cst) {
    step(true);
    return value_.fetch_or(bits, order);
  }

 private:
  static void step(bool is_write) {
    if (before_access != nullptr) before_access(is_write);
  }

  std::atomic<T> value_;
};

}  // namespace lockstep::ledger
