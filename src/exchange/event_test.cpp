#include "src/exchange/event.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "src/exchange/shared_memory.h"

namespace lockstep::exchange {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kLongMs = 20'000;  // a wait that lasts so long was not woken

/// Words that this process and its children share.
class EventTest : public ::testing::Test {
 protected:
  struct Shared {
    EventWords words;
    EventWords back;  // a second event, for answers
  };

  Shared& shared() { return *reinterpret_cast<Shared*>(mapping_.data()); }
  EventWords& words() { return shared().words; }

  bool may_sleep(uint32_t rank) {
    return (words().sleepers[rank / 64].load() >> (rank % 64) & 1) != 0;
  }

  bool comes_true(const std::function<bool()>& claim) {
    const auto end = Clock::now() + milliseconds(kLongMs);
    while (!claim()) {
      if (Clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  pid_t fork_child(const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() ? 0 : 1);
    return child;
  }

  static int wait_status(pid_t child) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  Descriptor memory_ = make_shared_memory("lockstep-test", kPageBytes);
  Mapping mapping_{memory_, 0, kPageBytes, Mapping::Kind::kShared};
};

// Whether a wait ended by a change, not by its time limit.
bool is_woken(Event& event, uint32_t seen) {
  const auto start = Clock::now();
  event.wait(seen, kLongMs);
  return event.value() != seen && Clock::now() - start < milliseconds(kLongMs);
}

TEST_F(EventTest, AChangeWakesASleeperInAnotherProcess) {
  const pid_t child = fork_child([&] {
    Event event(&words(), 5, 0);
    return is_woken(event, 0);
  });
  EXPECT_TRUE(comes_true([&] { return may_sleep(5); }));
  std::this_thread::sleep_for(milliseconds(20));  // it is asleep now, most likely
  Event(&words(), 0, 0).notify();
  EXPECT_EQ(wait_status(child), 0);
  EXPECT_FALSE(may_sleep(5));
}

TEST_F(EventTest, OneChangeWakesAll) {
  pid_t children[4];
  for (uint32_t rank = 0; rank < 4; ++rank) {
    children[rank] = fork_child([&] {
      Event event(&words(), 63 + rank, 0);
      return is_woken(event, 0);
    });
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(comes_true([&] { return may_sleep(63 + rank); }));
  }
  std::this_thread::sleep_for(milliseconds(20));
  Event(&words(), 0, 0).notify();
  for (const pid_t child : children) EXPECT_EQ(wait_status(child), 0);
}

// The two race for the moment between looking and sleeping, thousands of times.
TEST_F(EventTest, NoChangeIsMissed) {
  constexpr uint32_t kRounds = 5'000;
  const pid_t child = fork_child([&] {
    Event event(&shared().words, 1, 0), answer(&shared().back, 1, 0);
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (event.value() == round && !is_woken(event, round)) return false;
      answer.notify();
    }
    return true;
  });
  Event event(&shared().words, 0, 0), answer(&shared().back, 0, 0);
  uint32_t done = 0;
  for (; done < kRounds; ++done) {
    event.notify();
    if (answer.value() == done && !is_woken(answer, done)) break;
  }
  EXPECT_EQ(done, kRounds);
  EXPECT_EQ(wait_status(child), 0);
}

TEST_F(EventTest, AWaitForWhatHasChangedReturnsAtOnce) {
  Event event(&words(), 0, 0);
  event.notify();
  EXPECT_TRUE(is_woken(event, 0));
}

TEST_F(EventTest, AWaitEndsAtItsTimeLimitSoThatItsCallerLooksAgain) {
  Event event(&words(), 0, 0);
  const auto start = Clock::now();
  for (int i = 0; i < 3; ++i) event.wait(0, 100);
  const auto waited = Clock::now() - start;
  EXPECT_GE(waited, milliseconds(290));
  EXPECT_LT(waited, milliseconds(kLongMs));
  EXPECT_FALSE(may_sleep(0));
}

TEST_F(EventTest, ASignalEndsAWaitEarlyAndDoesNoHarm) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const pid_t parent = ::getpid();
  const pid_t child = fork_child([&] {
    const bool sleeps = comes_true([&] { return may_sleep(0); });
    std::this_thread::sleep_for(milliseconds(20));
    return sleeps && ::kill(parent, SIGUSR1) == 0;
  });
  Event event(&words(), 0, 0);
  event.wait(0, kLongMs);
  EXPECT_FALSE(may_sleep(0));
  EXPECT_EQ(wait_status(child), 0);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(EventTest, WhoWatchesTheWordSeesAChangeWithoutSleeping) {
  const pid_t child = fork_child([&] {
    Event event(&words(), 2, uint64_t{kLongMs} * 1'000'000);
    return is_woken(event, 0);
  });
  const auto end = Clock::now() + milliseconds(50);
  while (Clock::now() < end) EXPECT_FALSE(may_sleep(2));
  Event(&words(), 0, 0).notify();
  EXPECT_EQ(wait_status(child), 0);
}

TEST_F(EventTest, WatchingEndsAndSleepBegins) {
  const pid_t child = fork_child([&] {
    Event event(&words(), 2, 1'000'000);
    return is_woken(event, 0);
  });
  EXPECT_TRUE(comes_true([&] { return may_sleep(2); }));
  Event(&words(), 0, 0).notify();
  EXPECT_EQ(wait_status(child), 0);
}

TEST_F(EventTest, EveryRankHasAFlagOfItsOwn) {
  for (const uint32_t rank : {0u, 1u, 63u, 64u, 127u, 200u, 255u}) {
    for (auto& word : words().sleepers) word.store(~uint64_t{0});
    Event(&words(), rank, 0).wait(0, 1);
    for (uint32_t other = 0; other < 64 * kSleeperWords; ++other) {
      EXPECT_EQ(may_sleep(other), other != rank) << rank << ", " << other;
    }
  }
}

TEST_F(EventTest, AKilledSleeperLeavesItsFlagUntilItIsCleared) {
  const pid_t child = fork_child([&] {
    Event(&words(), 70, 0).wait(0, kLongMs);
    return true;
  });
  EXPECT_TRUE(comes_true([&] { return may_sleep(70); }));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(WTERMSIG(wait_status(child)), SIGKILL);
  EXPECT_TRUE(may_sleep(70));
  words().sleepers[1].fetch_or(1);  // somebody else's
  clear_sleeper(words(), 70);
  EXPECT_FALSE(may_sleep(70));
  EXPECT_TRUE(may_sleep(64));
}

// A claim succeeds once: asked again, whoever has it would wait for itself.
TEST_F(EventTest, WaitUntilNeverAsksAgainAfterATrue) {
  Event event(&words(), 0, 0);
  for (const int first_true : {1, 2, 3}) {
    int asked = 0;
    const auto claim = [&] { return ++asked == first_true; };
    const auto give_up = [&] {
      if (asked > first_true) throw std::runtime_error("asked again");
    };
    EXPECT_NO_THROW(event.wait_until(claim, 1, give_up)) << first_true;
    EXPECT_EQ(asked, first_true);
  }
}

}  // namespace
}  // namespace lockstep::exchange
