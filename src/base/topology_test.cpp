#include "src/base/topology.h"

#include <sched.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/system.h"
#include "src/base/temp_folder.h"

namespace lockstep::base {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Groups = std::vector<std::vector<uint32_t>>;

// Two sockets with four cores of two threads each: CPUs 0-3 and 8-11 on the first.
class Machine {
 public:
  explicit Machine(const std::string& allowed, bool has_nodes = true) {
    folder_.write("proc/self/status", "Cpus_allowed_list:\t" + allowed + "\n");
    for (uint32_t cpu = 0; cpu < 16; ++cpu) {
      const uint32_t first = cpu % 8;
      topology(cpu, "core_id", std::to_string(first % 4));
      topology(cpu, "physical_package_id", std::to_string(first / 4));
      topology(cpu, "thread_siblings_list",
               std::to_string(first) + "," + std::to_string(first + 8));
    }
    if (!has_nodes) return;
    folder_.write("sys/devices/system/node/online", "0-1\n");
    folder_.write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    folder_.write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
  }

  const std::string& root() const { return folder_.path(); }
  void online(const std::string& list) {
    folder_.write("sys/devices/system/cpu/online", list + "\n");
  }
  void topology(uint32_t cpu, const std::string& name, const std::string& text) {
    folder_.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name,
                  text + "\n");
  }
  void remove(const std::string& name) {
    for (uint32_t cpu = 0; cpu < 16; ++cpu) {
      std::filesystem::remove(root() + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                              "/topology/" + name);
    }
  }
  Groups share(uint32_t groups, uint32_t cores) const {
    return share_cores(cores_of(allowed_cpus(root()), root()), groups, cores);
  }

 private:
  TempFolder folder_;
};

TEST(Topology, RanksFillANodeBeforeTheNextAndShareNoCore) {
  const Machine machine("0-15");
  EXPECT_THAT(machine.share(3, 1),
              ElementsAre(ElementsAre(0, 8), ElementsAre(1, 9), ElementsAre(2, 10)));
  EXPECT_THAT(machine.share(2, 2), ElementsAre(ElementsAre(0, 1, 8, 9), ElementsAre(2, 3, 10, 11)));
  const Groups eight = machine.share(8, 1);
  ASSERT_EQ(eight.size(), 8u);
  EXPECT_THAT(eight[4], ElementsAre(4, 12));
  EXPECT_EQ(cpu_budget(machine.root()).physical_cores, 8u);
}

TEST(Topology, NoReplicaLiesInTwoNodesUnlessItMust) {
  const Machine machine("0-15");
  EXPECT_THAT(machine.share(2, 3),
              ElementsAre(ElementsAre(0, 1, 2, 8, 9, 10), ElementsAre(4, 5, 6, 12, 13, 14)));
  EXPECT_THAT(machine.share(1, 5), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 8, 9, 10, 11, 12)));
}

TEST(Topology, TooFewCoresForAllAreNone) {
  const Machine machine("0-15");
  EXPECT_THAT(machine.share(9, 1), IsEmpty());
  EXPECT_THAT(machine.share(3, 3), IsEmpty());
  EXPECT_THAT(machine.share(4294967295, 4294967295), IsEmpty());
  EXPECT_EQ(machine.share(8, 1).size(), 8u);
}

TEST(Topology, HolesInTheMaskAreLeftOut) {
  const Machine machine("1,3,9,12-13");
  EXPECT_THAT(machine.share(4, 1),
              ElementsAre(ElementsAre(1, 9), ElementsAre(3), ElementsAre(12), ElementsAre(13)));
  EXPECT_THAT(machine.share(5, 1), IsEmpty());
}

TEST(Topology, PackagesStandForMissingNodes) {
  const Machine machine("0-15", false);
  EXPECT_THAT(machine.share(2, 3),
              ElementsAre(ElementsAre(0, 1, 2, 8, 9, 10), ElementsAre(4, 5, 6, 12, 13, 14)));
}

TEST(Topology, CoreNumbersStandForMissingSiblings) {
  Machine machine("0-15");
  machine.remove("thread_siblings_list");
  EXPECT_EQ(machine.share(8, 1).size(), 8u);
  EXPECT_THAT(machine.share(1, 1), ElementsAre(ElementsAre(0, 8)));
  machine.remove("core_id");
  EXPECT_EQ(machine.share(16, 1).size(), 16u);  // each CPU a core
}

TEST(Topology, OfflineCpusAreLeftOut) {
  Machine machine("0-15");
  machine.online("2-5,10,12");
  EXPECT_THAT(machine.share(4, 1),
              ElementsAre(ElementsAre(2, 10), ElementsAre(3), ElementsAre(4, 12), ElementsAre(5)));
  EXPECT_THAT(machine.share(5, 1), IsEmpty());
  EXPECT_EQ(cpu_budget(machine.root()).physical_cores, 4u);
}

TEST(Topology, ContainerWithThreeCpusOfTheMachine) {
  const Machine machine("5-7");
  EXPECT_THAT(machine.share(3, 1), ElementsAre(ElementsAre(5), ElementsAre(6), ElementsAre(7)));
  EXPECT_THAT(machine.share(2, 2), IsEmpty());
}

TEST(Topology, OfThisMachineLiesWithinTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const std::set<uint32_t> all = allowed_cpus();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(*all.rbegin(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const std::set<uint32_t> allowed = allowed_cpus();
  const auto budget = cpu_budget();
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_THAT(allowed, ElementsAre(*all.rbegin()));
  EXPECT_EQ(budget.usable_cores, 1u);
  for (const Core& core : cores_of(all)) {
    for (const uint32_t cpu : core.cpus) EXPECT_TRUE(all.contains(cpu));
  }
}

TEST(Topology, ListsAreWrittenAsTheKernelDoes) {
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
}

}  // namespace
}  // namespace lockstep::base
