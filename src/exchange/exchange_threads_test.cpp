#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "src/exchange/control.h"
#include "src/exchange/event.h"

// Where several meet on one memory, as threads, for the thread sanitizer.

namespace lockstep::exchange {
namespace {

constexpr uint32_t kWaitMs = 20'000;

TEST(ExchangeThreads, AReportIsCompleteWhenItIsSeen) {
  const auto control = std::make_unique<ControlBlock>();
  constexpr uint64_t kCount = 20'000;
  std::thread writer([&] {
    for (uint64_t step = 1; step <= kCount;) {
      StepReport report{};
      report.step = step;
      report.parameter_hash = {step, ~step};
      if (push_report(*control, 3, report))
        ++step;
      else
        std::this_thread::yield();
    }
  });
  for (uint64_t step = 1; step <= kCount;) {
    StepReport report{};
    if (!pop_report(*control, 3, report)) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(report.parameter_hash.low, step);
    EXPECT_EQ(report.parameter_hash.high, ~step);
    ++step;
  }
  writer.join();
}

// The event orders nothing for its users by promise, but whoever sees a new value sees what was
// written before it: notify() releases and value() acquires.
TEST(ExchangeThreads, WhatChangedBeforeANotifyIsSeenAfterTheWait) {
  EventWords words{};
  constexpr uint32_t kRounds = 2'000;
  uint32_t changed = 0;  // not atomic, on purpose
  std::atomic<uint32_t> answered = 0;
  std::thread waiter([&] {
    Event event(&words, 1, 2'000);
    for (uint32_t round = 0; round < kRounds; ++round) {
      while (event.value() == round) event.wait(round, kWaitMs);
      EXPECT_EQ(changed, round + 1);
      answered.store(round + 1, std::memory_order_release);
    }
  });
  Event event(&words, 0, 0);
  for (uint32_t round = 0; round < kRounds; ++round) {
    ++changed;
    event.notify();
    while (answered.load(std::memory_order_acquire) != round + 1) std::this_thread::yield();
  }
  waiter.join();
}

}  // namespace
}  // namespace lockstep::exchange
