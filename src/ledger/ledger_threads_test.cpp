#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "src/ledger/simulated_replica.h"

// The replicas of simulated_replica.h on real threads, for the thread sanitizer. No check here adds
// a lock around what replicas share: the words of the ledger are all that orders their accesses.

namespace lockstep::ledger::simulated {
namespace {

struct Killed {};

/// What the launcher keeps: who has ended, and the event that all wait for. The event is relaxed:
/// it wakes, and orders nothing, so that the sanitizer sees what the ledger itself orders.
class Group {
 public:
  uint64_t event() const { return event_.load(std::memory_order_relaxed); }
  void notify() { event_.fetch_add(1, std::memory_order_relaxed); }

  void wait(uint64_t seen) const {
    const auto start = std::chrono::steady_clock::now();
    while (event() == seen) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) {
        throw Broken("nothing changed for 60 seconds");
      }
    }
  }

  std::atomic<bool> ended[4096] = {};  // [incarnation]
  std::atomic<bool> is_over = false;
  std::atomic<int> may_die = 0;  // so many more may

 private:
  std::atomic<uint64_t> event_ = 0;
};

class Thread final : public Environment {
 public:
  Thread(Group& group, const Scenario& scenario, uint16_t incarnation)
      : group_(group), scenario_(scenario), random_(scenario.seed * 1000 + incarnation) {}

  bool has_ended(uint16_t incarnation) const override {
    return group_.ended[incarnation].load(std::memory_order_acquire);
  }
  bool ended_by_fault(uint16_t) const override { return false; }
  void changed() override { group_.notify(); }
  uint64_t event() const override { return group_.event(); }
  void wait(uint64_t seen) override { group_.wait(seen); }
  bool run_is_over() const override { return group_.is_over.load(std::memory_order_relaxed); }

  void pause() override {
    if (random_() % 16 == 0) std::this_thread::yield();
  }

  void at(Point) override {
    pause();
    if (scenario_.death_one_in == 0 || random_() % scenario_.death_one_in != 0) return;
    if (group_.may_die.fetch_sub(1) > 0) throw Killed{};
    group_.may_die.fetch_add(1);
  }

 private:
  Group& group_;
  const Scenario& scenario_;
  std::mt19937_64 random_;
};

/// Runs one rank: its founding member, then a joiner after each death.
class Rank {
 public:
  Rank(const Scenario& scenario, const std::vector<Step>& expected, Arena& arena, Group& group,
       std::atomic<uint16_t>& last_incarnation)
      : scenario_(scenario),
        expected_(expected),
        arena_(arena),
        group_(group),
        last_incarnation_(last_incarnation) {}

  void run(uint32_t rank) {
    auto incarnation = static_cast<uint16_t>(rank + 1);
    bool joins = false;
    while (!runs_to_the_end(rank, incarnation, joins)) {
      group_.ended[incarnation].store(true, std::memory_order_release);
      group_.notify();
      incarnation = static_cast<uint16_t>(last_incarnation_.fetch_add(1) + 1);
      joins = true;
    }
  }

  std::string problem;

 private:
  bool runs_to_the_end(uint32_t rank, uint16_t incarnation, bool joins) {
    Thread thread(group_, scenario_, incarnation);
    try {
      Replica(scenario_, expected_, arena_, rank, incarnation, joins, thread).run();
      group_.is_over.store(true, std::memory_order_relaxed);
    } catch (const Killed&) {
      return false;
    } catch (const Failed&) {
      problem = "the run failed";
    } catch (const std::exception& error) {
      problem = error.what();
    }
    group_.notify();
    return true;
  }

  const Scenario& scenario_;
  const std::vector<Step>& expected_;
  Arena& arena_;
  Group& group_;
  std::atomic<uint16_t>& last_incarnation_;
};

// Every replica compares each step with the reference, bit for bit.
void run_threads(const Scenario& scenario) {
  const std::vector<Step> expected = reference(scenario);
  Arena arena(scenario);
  Group group;
  group.may_die = static_cast<int>(scenario.most_deaths);
  std::atomic<uint16_t> last_incarnation = static_cast<uint16_t>(scenario.rank_count);
  std::vector<Rank> ranks;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < scenario.rank_count; ++rank) {
    ranks.emplace_back(scenario, expected, arena, group, last_incarnation);
  }
  for (uint32_t rank = 0; rank < scenario.rank_count; ++rank) {
    threads.emplace_back([&ranks, rank] { ranks[rank].run(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t rank = 0; rank < scenario.rank_count; ++rank) {
    EXPECT_EQ(ranks[rank].problem, "") << "rank " << rank << ", seed " << scenario.seed;
  }
}

class Threads : public ::testing::TestWithParam<uint32_t> {};

TEST_P(Threads, SameBitsInThreeHundredRounds) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.rank_count = GetParam();
    scenario.round_count = 100;
    run_threads(scenario);
  }
}

// Fewer deaths than replicas, so that somebody always has the state.
TEST_P(Threads, SameBitsWithDeathsAndJoins) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.rank_count = GetParam();
    scenario.round_count = 30;
    scenario.death_one_in = 60;
    scenario.most_deaths = GetParam() - 1;
    run_threads(scenario);
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, Threads, ::testing::Values(2, 3, 5, 7));

}  // namespace
}  // namespace lockstep::ledger::simulated
