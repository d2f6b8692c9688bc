#include "src/base/system.h"

#include <sched.h>

#include <limits>
#include <locale>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/cgroup.h"
#include "src/base/temp_folder.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kMib = uint64_t{1} << 20;

// A made-up /proc and /sys.
class Machine {
 public:
  Machine() {
    cpus("0-3");
    memory_available_kib(1024 * 1024);
  }

  const std::string& root() const { return folder_.path(); }
  void file(const std::string& path, const std::string& text) { folder_.write(path, text); }
  void cpus(const std::string& list) {
    file("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\n");
  }
  void memory_available_kib(uint64_t kib) {
    file("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:    1 kB\nMemAvailable:   " +
                             std::to_string(kib) + " kB\n");
  }
  void siblings(int cpu, const std::string& list) {
    file("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list",
         list + "\n");
  }
  void version_2(const std::string& own) {
    file("proc/self/cgroup", "0::" + own + "\n");
    file("proc/self/mountinfo",
         "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void version_1(const std::string& own, const std::string& inside = "/") {
    file("proc/self/cgroup",
         "9:name=systemd:/\n4:memory:" + own + "\n3:cpu,cpuacct:" + own + "\n0::/\n");
    file("proc/self/mountinfo",
         "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
         "32 31 0:29 " +
             inside +
             " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "35 31 0:32 " +
             inside + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }

 private:
  TempFolder folder_;
};

TEST(CpuBudget, EveryCpuIsACoreWithoutTopology) {
  Machine machine;
  machine.cpus("0-3,8,10-11");
  const CpuBudget budget = cpu_budget(machine.root());
  EXPECT_EQ(budget.affinity_cores, 7u);
  EXPECT_EQ(budget.physical_cores, 7u);
  EXPECT_EQ(budget.usable_cores, 7u);
  EXPECT_FALSE(budget.quota_cores.has_value());
  EXPECT_EQ(budget.reason, "7 physical cores in the affinity mask; no CPU quota");
}

TEST(CpuBudget, SiblingsCountOnce) {
  Machine machine;
  for (int cpu = 0; cpu < 4; ++cpu) machine.siblings(cpu, cpu % 2 == 0 ? "0,2" : "1,3");
  const CpuBudget budget = cpu_budget(machine.root());
  EXPECT_EQ(budget.affinity_cores, 4u);
  EXPECT_EQ(budget.physical_cores, 2u);
  EXPECT_EQ(budget.reason,
            "2 physical cores (4 threads with SMT) in the affinity mask; "
            "no CPU quota");
}

TEST(CpuBudget, SiblingsOutsideTheAffinityDoNotCount) {
  Machine machine;
  machine.cpus("2-3");
  machine.siblings(2, "0,2");
  machine.siblings(3, "1,3");
  EXPECT_EQ(cpu_budget(machine.root()).physical_cores, 2u);
  machine.cpus("2");
  EXPECT_EQ(cpu_budget(machine.root()).reason,
            "1 physical core in the affinity mask; no CPU quota");
}

TEST(CpuBudget, OlderKernelsNameTheSiblingsDifferently) {
  Machine machine;
  for (int cpu = 0; cpu < 4; ++cpu) {
    machine.file(
        "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
        cpu < 2 ? "0-1\n" : "2-3\n");
  }
  EXPECT_EQ(cpu_budget(machine.root()).physical_cores, 2u);
}

TEST(CpuBudget, TheSmallestQuotaOfAnyAncestorHolds) {
  Machine machine;
  machine.version_2("/a/b/c");
  machine.file("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  machine.file("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  machine.file("sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  const CpuBudget budget = cpu_budget(machine.root());
  EXPECT_EQ(budget.quota_cores, 2.5);
  EXPECT_EQ(budget.usable_cores, 2u);
  EXPECT_EQ(budget.reason,
            "4 physical cores in the affinity mask; "
            "CPU quota of 2.5 cores (cpu.max of cgroup '/a/b')");
}

TEST(CpuBudget, QuotaOfTheMountPointItselfHolds) {
  Machine machine;
  machine.version_2("/");
  machine.file("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpu_budget(machine.root()).usable_cores, 1u);
  EXPECT_THAT(cpu_budget(machine.root()).reason, HasSubstr("quota of 1 core (cpu.max"));
}

TEST(CpuBudget, QuotasAreRoundedDown) {
  Machine machine;
  machine.version_2("/a");
  for (const auto& [quota, cores] :
       {std::pair("100000", 1u), std::pair("150000", 1u), std::pair("299999", 2u)}) {
    machine.file("sys/fs/cgroup/a/cpu.max", std::string(quota) + " 100000\n");
    EXPECT_EQ(cpu_budget(machine.root()).usable_cores, cores) << quota;
  }
}

TEST(CpuBudget, AtLeastOneCoreIsLeft) {
  Machine machine;
  machine.version_2("/a");
  machine.file("sys/fs/cgroup/a/cpu.max", "20000 100000\n");
  const CpuBudget budget = cpu_budget(machine.root());
  EXPECT_EQ(budget.usable_cores, 1u);
  EXPECT_EQ(budget.quota_cores, 0.2);
}

TEST(CpuBudget, AQuotaAboveTheAffinityChangesNothing) {
  Machine machine;
  machine.version_2("/a");
  machine.file("sys/fs/cgroup/a/cpu.max", "99999900000 100000\n");
  EXPECT_EQ(cpu_budget(machine.root()).usable_cores, 4u);
}

TEST(CpuBudget, VersionOneQuotaIsReadWithItsPeriod) {
  Machine machine;
  machine.version_1("/docker/abc");
  machine.file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cpu_budget(machine.root()).quota_cores.has_value());
  machine.file("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "50000\n");
  const CpuBudget budget = cpu_budget(machine.root());
  EXPECT_EQ(budget.usable_cores, 2u);
  EXPECT_THAT(budget.reason, HasSubstr("cpu.cfs_quota_us of cgroup '/docker'"));
}

TEST(CpuBudget, AContainerThatSeesOnlyItsOwnCgroupFindsTheQuota) {
  Machine machine;
  machine.version_1("/docker/abc", "/docker/abc");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_budget(machine.root()).quota_cores, 1.5);
  machine.version_1("/elsewhere", "/docker/abc");  // not below the mount: the mount point itself
  EXPECT_EQ(cpu_budget(machine.root()).quota_cores, 1.5);
  machine.version_1("/../sibling");
  EXPECT_EQ(cpu_budget(machine.root()).quota_cores, 1.5);
}

TEST(CpuBudget, NonsenseInQuotaFilesIsNoQuota) {
  for (const char* text :
       {"", "\n", "abc 100000", "100000 0", "100000 x", "-5 100000", "0 100000"}) {
    Machine machine;
    machine.version_2("/a");
    machine.file("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(cpu_budget(machine.root()).usable_cores, 4u) << text;
  }
}

TEST(CpuBudget, UnreadableAffinityIsAnError) {
  for (const char* list : {"", "x", "3-1", "1,,2", "0-99999999"}) {
    Machine machine;
    machine.cpus(list);
    try {
      cpu_budget(machine.root());
      ADD_FAILURE() << list;
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kEnvironment));
      EXPECT_THAT(error.what(), HasSubstr("Cpus_allowed_list"));
    }
  }
}

TEST(CpuBudget, OfThisMachineFollowsTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const CpuBudget all = cpu_budget();
  EXPECT_EQ(all.affinity_cores, static_cast<uint32_t>(CPU_COUNT(&before)));
  EXPECT_GE(all.usable_cores, 1u);
  EXPECT_LE(all.usable_cores, all.physical_cores);
  EXPECT_LE(all.physical_cores, all.affinity_cores);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const CpuBudget pinned = cpu_budget();
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(pinned.affinity_cores, 1u);
  EXPECT_EQ(pinned.usable_cores, 1u);
  EXPECT_THAT(pinned.reason, StartsWith("1 physical core in the affinity mask"));
}

TEST(MemoryBudget, AvailableMemoryLessFivePercent) {
  Machine machine;
  machine.memory_available_kib(1000);
  const MemoryBudget budget = memory_budget(machine.root());
  EXPECT_EQ(budget.available_bytes, 1000u * 1024 * 95 / 100);
  EXPECT_EQ(budget.limited_by, "MemAvailable");
}

TEST(MemoryBudget, TheTightestAncestorLimits) {
  Machine machine;
  machine.version_2("/a/b");
  machine.file("sys/fs/cgroup/a/b/memory.max", "max\n");
  machine.file("sys/fs/cgroup/a/b/memory.current", std::to_string(10 * kMib));
  machine.file("sys/fs/cgroup/a/memory.max", std::to_string(300 * kMib));
  machine.file("sys/fs/cgroup/a/memory.current", std::to_string(200 * kMib));
  const MemoryBudget budget = memory_budget(machine.root());
  EXPECT_EQ(budget.available_bytes, 95 * kMib);
  EXPECT_EQ(budget.limited_by, "memory.max of cgroup '/a'");
  EXPECT_THAT(budget.reason, AllOf(HasSubstr("300.0 MiB"), HasSubstr("200.0 MiB are in use")));
}

TEST(MemoryBudget, FileCacheThatTheKernelGivesBackIsNotInUse) {
  Machine machine;
  machine.version_2("/a");
  machine.file("sys/fs/cgroup/a/memory.max", std::to_string(300 * kMib));
  machine.file("sys/fs/cgroup/a/memory.current", std::to_string(290 * kMib));
  machine.file("sys/fs/cgroup/a/memory.stat",
               "anon 1\nactive_file 7\ninactive_file " + std::to_string(90 * kMib) + "\nx 2\n");
  EXPECT_EQ(memory_budget(machine.root()).available_bytes, 95 * kMib);
}

TEST(MemoryBudget, TheSoftLimitCountsToo) {
  Machine machine;
  machine.version_2("/a");
  machine.file("sys/fs/cgroup/a/memory.max", std::to_string(900 * kMib));
  machine.file("sys/fs/cgroup/a/memory.high", std::to_string(100 * kMib));
  machine.file("sys/fs/cgroup/a/memory.current", "0\n");
  EXPECT_EQ(memory_budget(machine.root()).limited_by, "memory.high of cgroup '/a'");
}

TEST(MemoryBudget, OverTheLimitNothingIsLeft) {
  Machine machine;
  machine.version_2("/a");
  machine.file("sys/fs/cgroup/a/memory.max", "1000\n");
  machine.file("sys/fs/cgroup/a/memory.current", "2000\n");
  EXPECT_EQ(memory_budget(machine.root()).available_bytes, 0u);
}

TEST(MemoryBudget, VersionOneLimits) {
  Machine machine;
  machine.version_1("/docker/abc");
  const std::string base = "sys/fs/cgroup/memory/docker/";
  machine.file(base + "abc/memory.limit_in_bytes", "9223372036854771712\n");
  machine.file(base + "abc/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(memory_budget(machine.root()).limited_by, "MemAvailable");
  machine.file(base + "memory.limit_in_bytes", std::to_string(300 * kMib));
  machine.file(base + "memory.usage_in_bytes", std::to_string(220 * kMib));
  machine.file(base + "memory.stat",
               "inactive_file 1\ntotal_inactive_file " + std::to_string(20 * kMib) + "\n");
  const MemoryBudget budget = memory_budget(machine.root());
  EXPECT_EQ(budget.available_bytes, 95 * kMib);
  EXPECT_EQ(budget.limited_by, "memory.limit_in_bytes of cgroup '/docker'");
}

TEST(MemoryBudget, MissingMeminfoIsAnErrorThatNamesIt) {
  Machine machine;
  for (const char* text :
       {"MemTotal: 5 kB\n", "MemAvailable: many kB\n", "MemAvailable: 99999999999999999999 kB\n",
        "MemAvailable: 18446744073709551615 kB\n"}) {
    machine.file("proc/meminfo", text);
    try {
      memory_budget(machine.root());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kEnvironment));
      EXPECT_THAT(error.what(), HasSubstr("proc/meminfo"));
    }
  }
}

TEST(MemoryBudget, OfThisMachineIsNotZero) {
  const MemoryBudget budget = memory_budget();
  EXPECT_GT(budget.available_bytes, kMib);
  EXPECT_FALSE(budget.limited_by.empty());
}

TEST(Cgroups, EscapedMountPointsAreFound) {
  Machine machine;
  machine.file("proc/self/cgroup", "0::/a\n");
  machine.file("proc/self/mountinfo",
               "30 23 0:26 / /odd\\040place rw - cgroup2 none rw\nbroken line\n1 2 - x\n - \n");
  const auto folders = cgroups_of(machine.root(), "cpu");
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(folders[0].path, machine.root() + "/odd place/a");
  EXPECT_EQ(folders[0].name, "/a");
  EXPECT_EQ(folders[1].name, "/");
}

TEST(Cgroups, AVersionOneControllerIsFoundByItsWholeName) {
  Machine machine;
  machine.file("proc/self/cgroup", "3:cpuset:/s\n2:cpuacct:/t\n");
  machine.file("proc/self/mountinfo",
               "30 23 0:26 / /c1 rw - cgroup cgroup rw,cpuset\n"
               "31 23 0:27 / /c2 rw - cgroup cgroup rw,cpuacct\n");
  EXPECT_TRUE(cgroups_of(machine.root(), "cpu").empty());
  EXPECT_EQ(cgroups_of(machine.root(), "cpuset").size(), 2u);
}

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(kMib - 1), "1.0 MiB");  // never 1024.0 KiB
  EXPECT_EQ(format_bytes(3 * kMib * 1024), "3.0 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(FormatDuration, TwoUnitsAtMost) {
  EXPECT_EQ(format_duration(0), "0ms");
  EXPECT_EQ(format_duration(0.35), "350ms");
  EXPECT_EQ(format_duration(0.9996), "1.0s");
  EXPECT_EQ(format_duration(3.46), "3.5s");
  EXPECT_EQ(format_duration(9.96), "10s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(130), "2m10s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_duration(3900), "1h05m");
  EXPECT_EQ(format_duration(86399), "1d00h");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(format_duration(-1), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unknown");
}

TEST(FormatBytes, TheLocaleDoesNotMatter) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const std::string bytes = format_bytes(1536);
  const std::string duration = format_duration(3.46);
  std::locale::global(before);
  EXPECT_EQ(bytes, "1.5 KiB");
  EXPECT_EQ(duration, "3.5s");
}

}  // namespace
}  // namespace lockstep::base
