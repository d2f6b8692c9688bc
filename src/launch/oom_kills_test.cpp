#include "src/launch/oom_kills.h"

#include <gtest/gtest.h>

#include "src/base/temp_folder.h"

namespace lockstep::launch {
namespace {

constexpr const char* kVersion2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

TEST(OomKills, NothingThereIsNothingCounted) {
  const base::TempFolder root;
  EXPECT_EQ(oom_kill_count(root.path()), 0u);
}

TEST(OomKills, ReadsVersion2WithTheGroupsAbove) {
  const base::TempFolder root;
  root.write("proc/self/mountinfo", kVersion2);
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("sys/fs/cgroup/user/job/memory.events",
             "low 1\noom 9\noom_kill 3\noom_group_kill 1\n");
  EXPECT_EQ(oom_kill_count(root.path()), 3u);
  root.write("sys/fs/cgroup/user/memory.events", "low 0\noom 0\noom_kill 4\n");
  EXPECT_EQ(oom_kill_count(root.path()), 7u);
}

TEST(OomKills, ReadsVersion1) {
  const base::TempFolder root;
  root.write("proc/self/mountinfo",
             "31 20 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(oom_kill_count(root.path()), 2u);
}

TEST(OomKills, AddsTheMachines) {
  const base::TempFolder root;
  root.write("proc/vmstat", "nr_free_pages 1649457\noom_kill 5\n");
  root.write("proc/self/mountinfo", kVersion2);
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.events", "oom_kill 1\n");
  EXPECT_EQ(oom_kill_count(root.path()), 6u);
}

TEST(OomKills, LinesThatMakeNoSenseAreSkipped) {
  const base::TempFolder root;
  root.write("proc/self/mountinfo", "nonsense\n - - -\n");
  root.write("proc/self/cgroup", "nonsense\n::\n");
  root.write("proc/vmstat", "oom_kill many\n");
  EXPECT_EQ(oom_kill_count(root.path()), 0u);
}

}  // namespace
}  // namespace lockstep::launch
