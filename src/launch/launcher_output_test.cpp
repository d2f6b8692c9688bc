#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/launch_test_support.h"

// What replicas print, on its way through the launcher.

namespace lockstep::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(LauncherOutput, KeepsTheOrderOfFiveThousandLinesOfEachRank) {
  const RecordedRun run = run_probe(3, {"lines=5000"});
  int next[3] = {0, 0, 0};
  for (const std::string& line : run.lines) {
    const int rank = line[0] - '0';
    ASSERT_EQ(line.substr(2), "out line " + std::to_string(next[rank]++));
  }
  for (const int count : next) EXPECT_EQ(count, 5000);
}

TEST(LauncherOutput, PrefixesLinesWithTheirRank) {
  Program program(probe_launch({"-n", "3"}, {"2:out=hello", "1:err=oops"}));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "[rank 2] hello\n");
  EXPECT_EQ(program.error_output(), "[rank 1] oops\n");
}

TEST(LauncherOutput, RawBytesPassUnchanged) {
  // A long line, an empty one, and a last one without an end.
  Program program(probe_launch({"-n", "1", "--raw"}, {"bytes=200000", "out=", "out=", "partial=end"}));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), std::string(200000, 'x') + "\n\nend");
}

TEST(LauncherOutput, LongLinesComeInPieces) {
  std::vector<std::pair<size_t, bool>> pieces;
  LaunchOptions options;
  options.command = probe_replica({"bytes=150000", "out="});
  options.on_line = [&](const OutputLine& line) {
    pieces.emplace_back(line.text.size(), line.has_newline);
    return true;
  };
  EXPECT_EQ(run_group(options).exit_status, 0);
  const std::vector<std::pair<size_t, bool>> expected = {{65536, false}, {65536, false}, {18928, true}};
  EXPECT_EQ(pieces, expected);
}

TEST(LauncherOutput, UnfinishedLineIsShownBeforeTheReplicaEnds) {
  Program program(probe_launch({"-n", "1", "--raw"}, {"partial=loading ...", "sleep"}));
  EXPECT_TRUE(program.wait_for_output("loading ..."));
}

TEST(LauncherOutput, ReaderThatStopsReadingStallsNeitherDeathsNorSignals) {
  // Rank 0 floods a pipe that nobody empties; rank 1 dies, and rank 2 must learn of it and tell.
  const std::string file = testing::TempDir() + "launch_flood_" + std::to_string(::getpid());
  ::unlink(file.c_str());
  Program program(probe_launch({"-n", "3"}, {"register", "0:flood", "1:wait_registered=0", "1:raise=9",
                                             "wait_ended=1", "pid=" + file, "sleep"}));
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(file); }, 20));
  ::unlink(file.c_str());
  ::kill(program.pid(), SIGTERM);
  EXPECT_TRUE(wait_until(
      [&] {
        const auto status = process_status(program.pid());
        return !status || status->state == 'Z';
      },
      20));
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherOutput, FloodDoesNotGrowTheLaunchersMemory) {
  Program program(probe_launch({"-n", "2"}, {"flood"}));
  // Read a little now and then: 30 MB pass through, a slow reader's worth.
  char bytes[65536];
  size_t total = 0;
  while (total < 30'000'000) {
    const ssize_t size = ::read(program.output_fd(), bytes, sizeof bytes);
    ASSERT_GT(size, 0);
    total += static_cast<size_t>(size);
  }
  std::ifstream status("/proc/" + std::to_string(program.pid()) + "/status");
  uint64_t peak_kilobytes = 0;
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> peak_kilobytes;
  }
  EXPECT_GT(peak_kilobytes, 0u);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(peak_kilobytes, 16'000u);
#endif
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait(), 130);
}

TEST(LauncherOutput, ClosedReaderEndsTheRunWith141) {
  Program program(probe_launch({"-n", "2"}, {"register", "lines=10", "flood"}));
  ASSERT_TRUE(program.wait_for_output("line 9"));
  program.close_output();
  EXPECT_EQ(program.wait(), 141);
  EXPECT_THAT(program.error_output(), HasSubstr("nobody reads the output any more"));
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherOutput, CallbackThatReturnsFalseEndsTheRunWith141) {
  LaunchOptions options;
  options.command = probe_replica({"register", "flood"});
  options.on_line = [](const OutputLine&) { return false; };
  EXPECT_EQ(run_group(options).exit_status, 141);
}

TEST(LauncherOutput, FullDiskIsToldAndDoesNotPassForSuccess) {
  Program program({"sh", "-c", shell_quote(probe_launch({"-n", "1"}, {"out=x"})) + ">/dev/full"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.error_output(), HasSubstr("No space left on device"));
}

TEST(LauncherOutput, ClosedStandardStreamsAreNoTrouble) {
  Program program({"sh", "-c", shell_quote(probe_launch({"-n", "2"}, {"register", "out=x"})) +
                                   "<&- >&- 2>&-"});
  EXPECT_EQ(program.wait(), 0);
}

TEST(LauncherOutput, DeathReportHoldsTheLastLinesOnStandardError) {
  const RecordedRun run = run_probe(1, {"register", "err=first", "err=second", "exit=4"});
  EXPECT_THAT(run.result.deaths.at(0).last_stderr_lines, testing::ElementsAre("first", "second"));
}

}  // namespace
}  // namespace lockstep::launch
