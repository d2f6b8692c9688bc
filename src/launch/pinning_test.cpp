#include "src/launch/pinning.h"

#include <sched.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"
#include "src/base/topology.h"
#include "src/launch/launch_test_support.h"

namespace lockstep::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Machine {
 public:
  explicit Machine(const std::string& allowed) {
    folder_.write("proc/self/status", "Cpus_allowed_list:\t" + allowed + "\n");
  }
  void quota(const std::string& text) {
    folder_.write("proc/self/cgroup", "0::/a\n");
    folder_.write("proc/self/mountinfo",
                  "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
    folder_.write("sys/fs/cgroup/a/cpu.max", text + "\n");
  }
  Pinning plan(uint32_t replicas, uint32_t threads = 1, PinMode mode = PinMode::kAuto) const {
    return plan_pinning({mode, replicas, threads}, folder_.path());
  }

 private:
  base::TempFolder folder_;
};

TEST(Pinning, GivesEachReplicaCoresOfItsOwnAndNamesThem) {
  const Machine machine("0,2,5-6");
  {
    const Pinning two = machine.plan(2);
    EXPECT_THAT(two.cpus, ElementsAre(ElementsAre(0), ElementsAre(2)));
    EXPECT_EQ(two.note, "pinned to cores 0, 2");
  }
  const Pinning threads = machine.plan(2, 2);
  EXPECT_THAT(threads.cpus, ElementsAre(ElementsAre(0, 2), ElementsAre(5, 6)));
  EXPECT_EQ(threads.note, "pinned to cores 0,2, 5-6");
}

TEST(Pinning, ManyReplicasAreNamedInOneList) {
  EXPECT_EQ(Machine("0-63").plan(60).note, "pinned to cores 0-59");
}

TEST(Pinning, ByItselfPinsNothingWhereThreadsExceedCores) {
  const Machine machine("0-3");
  const Pinning plan = machine.plan(3, 2);
  EXPECT_THAT(plan.cpus, IsEmpty());
  EXPECT_EQ(plan.note, "not pinned: 3 replicas x 2 threads = 6 threads, 4 cores");
  EXPECT_EQ(machine.plan(5).note, "not pinned: 5 replicas, 4 cores");
}

TEST(Pinning, ByItselfPinsNothingUnderAQuotaSmallerThanTheCores) {
  Machine machine("0-3");
  machine.quota("350000 100000");
  EXPECT_EQ(machine.plan(2).note, "not pinned: a CPU quota");
  EXPECT_EQ(machine.plan(2, 1, PinMode::kOn).note, "pinned to cores 0, 1");
  machine.quota("400000 100000");
  EXPECT_EQ(machine.plan(2).note, "pinned to cores 0, 1");
}

TEST(Pinning, OnIsRefusedWithNumbersWhereItIsImpossible) {
  const Machine machine("0-3");
  try {
    machine.plan(5, 2, PinMode::kOn);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("5 replicas x 2 threads = 10 threads"));
    EXPECT_THAT(error.what(), HasSubstr("there are 4 physical cores"));
  }
}

TEST(Pinning, OffPinsAndSaysNothing) {
  const Pinning plan = Machine("0-3").plan(2, 1, PinMode::kOff);
  EXPECT_THAT(plan.cpus, IsEmpty());
  EXPECT_EQ(plan.note, "");
}

TEST(Pinning, RunsOfOneMachineTakeDifferentCoresAndGiveThemBack) {
  const Machine machine("0-3");
  {
    const Pinning first = machine.plan(2);
    EXPECT_EQ(first.note, "pinned to cores 0, 1");
    const Pinning second = machine.plan(2);
    EXPECT_EQ(second.note, "pinned to cores 2, 3");
    EXPECT_EQ(machine.plan(1).note, "not pinned: other runs have 4 of 4 cores");
    EXPECT_EQ(machine.plan(2, 1, PinMode::kOn).note, "pinned to cores 0, 1");
  }
  EXPECT_EQ(machine.plan(4).note, "pinned to cores 0, 1, 2, 3");
}

TEST(Pinning, KnowsItsWords) {
  EXPECT_EQ(parse_pin_mode("auto"), PinMode::kAuto);
  EXPECT_EQ(parse_pin_mode("on"), PinMode::kOn);
  EXPECT_EQ(parse_pin_mode("off"), PinMode::kOff);
  EXPECT_EQ(parse_pin_mode("yes"), std::nullopt);
  EXPECT_EQ(parse_pin_mode(""), std::nullopt);
}

std::string allowed_line(const std::string& rank, uint32_t cpu) {
  return rank + " out Cpus_allowed_list:\t" + std::to_string(cpu);
}

TEST(Pinning, HoldsForTheProgramThatIsStartedAndForNobodyElse) {
  const std::set<uint32_t> all = base::allowed_cpus();
  LaunchOptions options;
  options.replica_count = 2;
  options.cpus = {{*all.begin()}, {*all.rbegin()}};
  options.command = {"grep", "Cpus_allowed_list", "/proc/self/status"};
  const RecordedRun run = run_recorded(options);
  EXPECT_TRUE(run.has_line(allowed_line("0", *all.begin()))) << run.all();
  EXPECT_TRUE(run.has_line(allowed_line("1", *all.rbegin()))) << run.all();
  EXPECT_EQ(base::allowed_cpus(), all);
}

}  // namespace
}  // namespace lockstep::launch
