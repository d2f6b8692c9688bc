#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace lockstep::exchange {

inline constexpr uint32_t kSleeperWords = 4;  // 64 ranks each

/// The shared part of an event: one futex word that every change increments, and one flag per
/// rank that says "may be asleep". A flag, not a counter: a sleeper that is killed leaves its flag
/// set, which costs needless wake-ups until the launcher clears it, and never a lost one.
struct EventWords {
  std::atomic<uint32_t> value;
  std::atomic<uint64_t> sleepers[kSleeperWords];
};

/// One process's handle on it. Change what is waited for first, then notify().
/// std::atomic::wait is of no use here: it waits within one process only.
class Event {
 public:
  /// `spin_ns`: how long wait() watches the word before it sleeps. `has_core` false: between two
  /// looks it leaves its core to others, since who is awaited may need it.
  Event(EventWords* words, uint32_t rank, uint64_t spin_ns, bool has_core = true);

  uint32_t value() const { return words_->value.load(std::memory_order_acquire); }

  void notify();

  /// As notify(), but nearly free while nobody sleeps: the value then stays as it is. Who waits for
  /// a change that is told this way must look at what it waits for in wait()'s `ready`.
  void notify_sleepers();

  /// Returns when the value is no longer `seen` or `ready` is true, after `timeout_ms` at the
  /// latest. True: `ready` said so. False: look again at what you wait for.
  bool wait(uint32_t seen, uint32_t timeout_ms, const std::function<bool()>& ready = {});

  /// Asks `ready` after every change, and every `slice_ms`, until it says true; never once more,
  /// since it may be a claim that succeeds only once. `on_false` is called after each false, and
  /// may throw to end the wait.
  void wait_until(const std::function<bool()>& ready, uint32_t slice_ms,
                  const std::function<void()>& on_false);

 private:
  bool spin(uint32_t seen) const;

  EventWords* words_;
  uint32_t rank_;
  uint64_t spin_ns_;
  bool has_core_;
};

/// Tells the core that this thread is watching memory.
void pause_cpu();

/// Clears the flag of a dead rank (the launcher does, before it wakes everyone).
void clear_sleeper(EventWords& words, uint32_t rank);

}  // namespace lockstep::exchange
