#include "src/exchange/event.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

#include <climits>

namespace lockstep::exchange {
namespace {

// Non-private operations: the word lies in memory that processes share.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint32_t timeout_ms) {
  timespec timeout{};
  timeout.tv_sec = timeout_ms / 1000;
  timeout.tv_nsec = static_cast<long>(timeout_ms % 1000) * 1'000'000;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Stores before it and loads after it are not exchanged.
void full_fence() {
#if defined(LOCKSTEP_SANITIZED)
  // The thread sanitizer does not know fences; to it and on its processors this is one.
  static std::atomic<uint32_t> word;
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

Event::Event(EventWords* words, uint32_t rank, uint64_t spin_ns, bool has_core)
    : words_(words), rank_(rank), spin_ns_(spin_ns), has_core_(has_core) {}

void Event::notify() {
  // Sequentially consistent on both sides: either this sees the sleeper's flag, or the sleeper
  // sees the new value before it sleeps.
  words_->value.fetch_add(1, std::memory_order_seq_cst);
  for (auto& word : words_->sleepers) {
    if (word.load(std::memory_order_seq_cst) != 0) {
      futex_wake_all(words_->value);
      return;
    }
  }
}

void Event::notify_sleepers() {
  // Pairs with the flag and the look at `ready` in wait(): one of the two sees the other.
  full_fence();
  for (auto& word : words_->sleepers) {
    if (word.load(std::memory_order_relaxed) != 0) return notify();
  }
}

bool Event::spin(uint32_t seen) const {
  if (spin_ns_ == 0) return false;
  const uint64_t end = now_ns() + spin_ns_;
  do {
    for (int i = 0; i < (has_core_ ? 32 : 1); ++i) {
      if (value() != seen) return true;
      has_core_ ? pause_cpu() : static_cast<void>(::sched_yield());
    }
  } while (now_ns() < end);
  return false;
}

bool Event::wait(uint32_t seen, uint32_t timeout_ms, const std::function<bool()>& ready) {
  if (value() != seen || spin(seen)) return false;
  auto& flags = words_->sleepers[rank_ / 64];
  const uint64_t flag = uint64_t{1} << (rank_ % 64);
  flags.fetch_or(flag, std::memory_order_seq_cst);
  full_fence();
  bool is_ready = false;
  if (words_->value.load(std::memory_order_seq_cst) == seen) {
    is_ready = ready && ready();
    if (!is_ready) futex_wait(words_->value, seen, timeout_ms);
  }
  flags.fetch_and(~flag, std::memory_order_seq_cst);
  return is_ready;
}

void Event::wait_until(const std::function<bool()>& ready, uint32_t slice_ms,
                       const std::function<void()>& on_false) {
  for (;;) {
    const uint32_t seen = value();
    if (ready()) return;
    on_false();
    if (wait(seen, slice_ms, ready)) return;
  }
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void clear_sleeper(EventWords& words, uint32_t rank) {
  words.sleepers[rank / 64].fetch_and(~(uint64_t{1} << (rank % 64)), std::memory_order_seq_cst);
}

}  // namespace lockstep::exchange
