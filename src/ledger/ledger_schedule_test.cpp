#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "src/base/random.h"
#include "src/ledger/simulation.h"

namespace lockstep::ledger::simulated {
namespace {

// A check inside the ledger aborts: say which seed it was.
char replay_line[200];

void print_replay(int) {
  const ssize_t written = write(STDERR_FILENO, replay_line, std::strlen(replay_line));
  static_cast<void>(written);
}

void announce(uint64_t seed) {
  std::signal(SIGABRT, print_replay);
  std::snprintf(replay_line, sizeof replay_line,
                "replay: LOCKSTEP_TEST_SEED=%llu ledger_test --gtest_filter=Schedules.OneSeed\n",
                static_cast<unsigned long long>(seed));
}

// All of a run from one number, so that a number is all that a replay needs.
Scenario scenario_of(uint64_t seed) {
  const auto pick = [seed](uint64_t bound, uint64_t use) {
    return static_cast<uint32_t>(base::mix_key(seed, 77, use) % bound);
  };
  Scenario scenario;
  scenario.seed = seed;
  scenario.rank_count = 1 + pick(7, 0);
  scenario.round_count = 3 + pick(4, 1);
  constexpr uint32_t kMost[] = {4, 9, 17, 40};
  scenario.most_microbatches = kMost[pick(4, 2)];
  scenario.bucket_count = 1 + pick(4, 3);
  scenario.values_one_in = pick(3, 4) == 0 ? 0 : 4;
  scenario.break_one_in = pick(4, 5) == 0 ? 12 : 0;
  constexpr uint32_t kDeaths[] = {0, 15, 40, 150, 400};
  scenario.death_one_in = kDeaths[pick(5, 6)];
  scenario.most_deaths = 1 + pick(12, 7);
  scenario.most_joins = pick(3, 8) == 0 ? 0 : pick(10, 9);
  scenario.death_delay = pick(2, 10) == 0 ? 0 : 300;
  scenario.keeps_survivor = pick(10, 11) != 0;
  scenario.fault_one_in = pick(3, 12) == 0 ? 1 : 0;
  scenario.may_steal = pick(6, 13) != 0;
  scenario.shuffles = pick(6, 14) == 0;
  constexpr uint32_t kSteps[] = {0, 8, 40, 200};
  scenario.step_one_in = kSteps[pick(4, 17)];
  if (scenario.rank_count > 2 && pick(8, 15) == 0) scenario.absent_rank = pick(3, 16);
  return scenario;
}

// Runs one seed. Leaving the loop while nobody else can take the rest over ends a run rightly.
::testing::AssertionResult holds(const Scenario& scenario, uint64_t seed) {
  announce(seed);
  const Outcome outcome = simulate(scenario);
  const bool may_fail =
      outcome.failure == FailureKind::kNone ||
      (outcome.failure == FailureKind::kPoisonousMicrobatch && scenario.fault_one_in != 0) ||
      (outcome.failure == FailureKind::kUnclaimed && scenario.break_one_in != 0);
  if (outcome.problem.empty() && may_fail && !(outcome.is_extinct && scenario.keeps_survivor)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << outcome.problem << " (failure kind " << static_cast<int>(outcome.failure) << ", "
         << outcome.deaths << " deaths, extinct " << outcome.is_extinct << ", " << outcome.turns
         << " turns)\n"
         << replay_line;
}

void run_seeds(uint64_t begin, uint64_t end) {
  for (uint64_t seed = begin; seed < end; ++seed) {
    ASSERT_TRUE(holds(scenario_of(seed), seed));
  }
}

// LOCKSTEP_TEST_SEED=17 replays one, LOCKSTEP_TEST_SEED=17-9000 searches a range.
TEST(Schedules, OneSeed) {
  const char* text = std::getenv("LOCKSTEP_TEST_SEED");
  char* rest = nullptr;
  const uint64_t begin = text == nullptr ? 1 : std::strtoull(text, &rest, 10);
  const bool is_range = rest != nullptr && *rest == '-';
  run_seeds(begin, is_range ? std::strtoull(rest + 1, nullptr, 10) : begin + 1);
}

TEST(Schedules, SameBitsUnderSeeds0To2500) { run_seeds(0, 2500); }
TEST(Schedules, SameBitsUnderSeeds2500To5000) { run_seeds(2500, 5000); }
TEST(Schedules, SameBitsUnderSeeds5000To7500) { run_seeds(5000, 7500); }
TEST(Schedules, SameBitsUnderSeeds7500To10000) { run_seeds(7500, 10000); }

TEST(Schedules, ASeedReplaysExactly) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Outcome first = simulate(scenario_of(seed));
    const Outcome again = simulate(scenario_of(seed));
    EXPECT_EQ(first.turns, again.turns) << seed;
    EXPECT_EQ(first.deaths, again.deaths) << seed;
  }
}

// Points that a replica of this role comes to in every run that is long enough.
bool comes_to(Role role, Point point) {
  switch (point) {
    case Point::kJoinAsked:
    case Point::kJoinerLoaded: return role == Role::kNewcomer;
    case Point::kDonorCopying: return role == Role::kLowestMember;
    case Point::kApplying:
    case Point::kApplied: return true;
    default: return role != Role::kNewcomer;
  }
}

TEST(Schedules, SeedsReachWhatTheyAreForAndKillAtEveryPointInEveryRole) {
  uint32_t joiners = 0, extinct = 0, poisonous = 0, unclaimed = 0;
  uint32_t deaths_at[kRoleCount][kPointCount] = {}, deaths_between_points[kRoleCount] = {};
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const Outcome outcome = simulate(scenario_of(seed));
    joiners += outcome.loaded_joiners;
    extinct += outcome.is_extinct;
    poisonous += outcome.failure == FailureKind::kPoisonousMicrobatch;
    unclaimed += outcome.failure == FailureKind::kUnclaimed;
    for (int role = 0; role < kRoleCount; ++role) {
      deaths_between_points[role] += outcome.deaths_between_points[role];
      for (int point = 0; point < kPointCount; ++point) {
        deaths_at[role][point] += outcome.deaths_at[role][point];
      }
    }
  }
  EXPECT_GT(joiners, 300u);
  EXPECT_GT(extinct, 10u);
  EXPECT_GT(poisonous, 5u);
  EXPECT_GT(unclaimed, 5u);
  for (int role = 0; role < kRoleCount; ++role) {
    EXPECT_GT(deaths_between_points[role], 10u) << "role " << role;
    for (int point = 0; point < kPointCount; ++point) {
      if (!comes_to(static_cast<Role>(role), static_cast<Point>(point))) continue;
      EXPECT_GT(deaths_at[role][point], 0u)
          << "role " << role << " at " << point_name(static_cast<Point>(point));
    }
  }
}

// -- Deaths at every point ------------------------------------------------------------------------

class DeathAt : public ::testing::TestWithParam<int> {};

TEST_P(DeathAt, CostsNothingInAnyReplica) {
  uint32_t killed = 0;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (uint32_t visit = 0; visit < 4; ++visit) {
      for (uint64_t seed = 0; seed < 24; ++seed) {
        Scenario scenario;
        scenario.seed = 1 + seed;
        scenario.most_microbatches = 12;
        scenario.most_joins = 2;
        scenario.round_count = 7;
        scenario.death_delay = seed % 2 == 0 ? 0 : 100;
        scenario.absent_rank = seed % 4 == 3 ? UINT32_MAX : static_cast<uint32_t>(seed % 4);
        scenario.kill = {static_cast<Point>(GetParam()), rank, visit};
        const Outcome outcome = simulate(scenario);
        ASSERT_EQ(outcome.problem, "") << "rank " << rank << ", visit " << visit << ", " << seed;
        ASSERT_EQ(outcome.failure, FailureKind::kNone);
        killed += outcome.killed_as_told;
      }
    }
  }
  EXPECT_GE(killed, 15u);  // the point was reached, and the replica did die there
}

std::string name_of_point(const ::testing::TestParamInfo<int>& point) {
  std::string name = point_name(static_cast<Point>(point.param));
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Schedules, DeathAt, ::testing::Range(0, kPointCount), name_of_point);

TEST(Schedules, WhenAllDieTheRunEnds) {
  uint32_t extinct = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.death_one_in = 10;
    scenario.most_deaths = 100;
    scenario.most_joins = 3;
    scenario.keeps_survivor = false;
    const Outcome outcome = simulate(scenario);
    ASSERT_EQ(outcome.problem, "") << seed;
    extinct += outcome.is_extinct;
  }
  EXPECT_GE(extinct, 40u);
}

// -- Failures -------------------------------------------------------------------------------------

Scenario poisoned(uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.rank_count = 4;
  scenario.poisoned_microbatch = 0;
  scenario.step_one_in = seed % 2 == 0 ? 0 : 30;
  return scenario;
}

TEST(Schedules, APoisonousMicrobatchEndsTheRunAfterTwoDeaths) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Outcome outcome = simulate(poisoned(seed));
    ASSERT_EQ(outcome.problem, "") << seed;
    ASSERT_EQ(outcome.failure, FailureKind::kPoisonousMicrobatch) << seed;
    ASSERT_EQ(outcome.failed_microbatch, 0u);
    ASSERT_EQ(outcome.deaths, 2u) << seed;
    ASSERT_NE(outcome.failed_rank, outcome.failed_other_rank);
    ASSERT_LT(std::max(outcome.failed_rank, outcome.failed_other_rank), 4u);
  }
}

TEST(Schedules, ThreeKillsOnOneMicrobatchDoNotEndTheRun) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Scenario scenario = poisoned(seed);
    scenario.poison_is_fault = false;
    scenario.poison_deaths = 3;
    const Outcome outcome = simulate(scenario);
    ASSERT_EQ(outcome.problem, "") << seed;
    ASSERT_EQ(outcome.failure, FailureKind::kNone) << seed;
    ASSERT_EQ(outcome.deaths, 3u);
  }
}

TEST(Schedules, WhenAllLeaveTheLoopEarlyAllAreTold) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.all_leave = true;
    scenario.may_steal = seed % 2 == 0;
    if (scenario.microbatch_count(2) <= 3) continue;  // one each, and none is left over
    const Outcome outcome = simulate(scenario);
    ASSERT_EQ(outcome.problem, "") << seed;
    ASSERT_EQ(outcome.failure, FailureKind::kUnclaimed) << seed;
  }
}

TEST(Schedules, CopiesThatDifferEndTheRun) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.diverging_rank = static_cast<uint32_t>(seed % 3);
    const Outcome outcome = simulate(scenario);
    ASSERT_EQ(outcome.problem, "") << seed;
    ASSERT_EQ(outcome.failure, FailureKind::kDiverged) << seed;
    const bool is_named = outcome.failed_rank == scenario.diverging_rank ||
                          outcome.failed_other_rank == scenario.diverging_rank;
    ASSERT_TRUE(is_named) << seed;
  }
}

// -- Canaries: a broken protocol must be noticed --------------------------------------------------

uint32_t noticed(Canary canary) {
  uint32_t count = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.canary = canary;
    const Outcome outcome = simulate(scenario);
    count += !outcome.problem.empty();
  }
  return count;
}

TEST(Canaries, AnotherOrderOfAdditionsIsNoticed) {
  EXPECT_GT(noticed(Canary::kMergesInOtherOrder), 30u);
}
TEST(Canaries, ASlotThatIsLiveTooEarlyIsNoticed) {
  EXPECT_GT(noticed(Canary::kPublishesTooEarly), 30u);
}
TEST(Canaries, ASlotThatIsFreedTooEarlyIsNoticed) {
  EXPECT_GT(noticed(Canary::kFreesTooEarly), 3u);
}
TEST(Canaries, AMeanThatIsWrittenTooEarlyIsNoticed) {
  EXPECT_GT(noticed(Canary::kMeanTooEarly), 3u);
}
TEST(Canaries, AStateThatIsLoadedTooEarlyIsNoticed) {
  EXPECT_GT(noticed(Canary::kLoadsTooEarly), 30u);
}
TEST(Canaries, AskingWhetherAllIsDoneBeforeWhetherAllHaveArrivedIsNoticed) {
  uint32_t problems = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.rank_count = 2;
    scenario.most_microbatches = 4;
    scenario.round_count = 10;
    scenario.values_one_in = 0;
    scenario.break_one_in = 8;
    scenario.step_one_in = 60;
    scenario.canary = Canary::kAsksDoneFirst;
    problems += !simulate(scenario).problem.empty();
  }
  EXPECT_GT(problems, 0u);
}
TEST(Canaries, AChangeThatWakesNobodyIsNoticed) {
  EXPECT_GT(noticed(Canary::kForgetsToNotify), 30u);
}

}  // namespace
}  // namespace lockstep::ledger::simulated
