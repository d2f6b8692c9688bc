#include "src/launch/oom_kills.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launch {
namespace {

class OomKillsTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "launch_oom_" + std::to_string(::getpid());
};

TEST_F(OomKillsTest, NothingThereIsNothingCounted) { EXPECT_EQ(oom_kill_count(root_), 0u); }

TEST_F(OomKillsTest, ReadsVersion2) {
  write("/proc/self/cgroup", "0::/user/job\n");
  write("/sys/fs/cgroup/user/job/memory.events", "low 1\noom 9\noom_kill 3\noom_group_kill 1\n");
  EXPECT_EQ(oom_kill_count(root_), 3u);
}

TEST_F(OomKillsTest, ReadsVersion1WhereThePathIsTheHosts) {
  write("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(oom_kill_count(root_), 2u);
}

TEST_F(OomKillsTest, AddsTheMachines) {
  write("/proc/vmstat", "nr_free_pages 1649457\noom_kill 5\n");
  EXPECT_EQ(oom_kill_count(root_), 5u);
}

TEST_F(OomKillsTest, LinesThatMakeNoSenseAreSkipped) {
  write("/proc/self/cgroup", "nonsense\n::\n");
  write("/proc/vmstat", "oom_kill many\n");
  EXPECT_EQ(oom_kill_count(root_), 0u);
}

}  // namespace
}  // namespace lockstep::launch
