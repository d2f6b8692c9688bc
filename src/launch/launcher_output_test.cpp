#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/launch_test_support.h"

// What replicas print, on its way through the launcher.

namespace lockstep::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The action letters=COUNT of ranks 0 to 2, as it must come out: nothing but whole lines.
void expect_letters(const std::string& text, const std::string& first_letters, int count) {
  std::map<std::string, int> counts;  // [line]
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) ++counts[line];
  std::map<std::string, int> expected;
  for (const char first : first_letters) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto letter = static_cast<char>(first + rank);
      expected["[rank " + std::to_string(rank) + "] " + std::string(3000, letter)] = count;
    }
  }
  EXPECT_TRUE(counts == expected) << counts.size() << " different lines, expected "
                                  << expected.size();
}

bool is_gone_or_zombie(pid_t pid) {
  const auto status = process_status(pid);
  return !status || status->state == 'Z';
}

TEST(LauncherOutput, SlowReaderGetsWholeLines) {
  // The replicas print more than all buffers hold. While the reader pauses, a line that the
  // launcher has half of is no unfinished one: the rest stands in its pipe.
  const std::string command = shell_quote(probe_launch({"-n", "3"}, {"letters=300"}));
  Program program({"sh", "-c", command + "2>/dev/null"});
  for (int pause = 0; pause < 4; ++pause) {
    ASSERT_TRUE(program.read_output(300'000));
    ::poll(nullptr, 0, 400);  // not to wait for anything: longer than unfinished lines are kept
  }
  EXPECT_EQ(program.wait(), 0);
  expect_letters(program.output(), "a", 300);
}

TEST(LauncherOutput, StreamsThatShareAFileShareNoLine) {
  const std::string command = shell_quote(probe_launch({"-n", "3"}, {"letters=200"}));
  Program program({"sh", "-c", command + "2>&1"});
  while (program.read_output(1, 1000)) {
  }
  EXPECT_EQ(program.wait(), 0);
  expect_letters(program.output(), "aA", 200);
}

TEST(LauncherOutput, LineThatComesInPiecesIsNotCutByOthers) {
  Program program(probe_launch(
      {"-n", "2"}, {"register", "wait_registered=0", "wait_registered=1", "0:partial=one",
                    "0:partial=, two", "1:letters=20", "0:out=, three"}));
  EXPECT_EQ(program.wait(), 0);
  // Its pieces may stand long enough to be shown one by one, each as a line of its rank.
  std::string joined;
  std::istringstream lines(program.output());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[rank 0] ")) joined += line.substr(9);
  }
  EXPECT_EQ(joined, "one, two, three");
}

TEST(LauncherOutput, RawLinesOfSeveralReplicasAreNotMixed) {
  Program program(probe_launch({"-n", "3", "--raw"}, {"letters=200"}));
  EXPECT_EQ(program.wait(), 0);
  std::istringstream lines(program.output());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line, std::string(3000, line[0]));
  }
  EXPECT_EQ(count, 600);
}

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
  Program program(
      probe_launch({"-n", "1", "--raw"}, {"bytes=200000", "out=", "out=", "partial=end"}));
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
  const std::vector<std::pair<size_t, bool>> expected = {
      {65536, false}, {65536, false}, {18928, true}};
  EXPECT_EQ(pieces, expected);
}

TEST(LauncherOutput, UnfinishedLineIsShownBeforeTheReplicaEnds) {
  Program program(probe_launch({"-n", "1", "--raw"}, {"partial=loading ...", "sleep"}));
  EXPECT_TRUE(program.wait_for_output("loading ..."));
}

TEST(LauncherOutput, ReaderThatStopsReadingStallsNeitherDeathsNorSignals) {
  // Rank 0 floods a pipe that nobody empties; rank 1 dies, and rank 2 must learn of it and tell.
  const std::string file = temp_path("flood");
  Program program(probe_launch({"-n", "3"}, {"register", "0:flood", "1:wait_registered=0",
                                             "1:raise=9", "wait_ended=1", "pid=" + file, "sleep"}));
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(file); }));
  ::unlink(file.c_str());
  ::kill(program.pid(), SIGTERM);
  EXPECT_TRUE(wait_until([&] { return is_gone_or_zombie(program.pid()); }));
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherOutput, ReaderThatStopsReadingIsWaitedForUntilASignal) {
  // All replicas have ended, and more is left of what they printed than the reader's pipe holds.
  const std::string file = temp_path("last");
  Program program(probe_launch({"-n", "1"}, {"register", "bytes=150000", "out=", "pid=" + file}));
  pid_t replica = 0;
  ASSERT_TRUE(wait_until([&] { return static_cast<bool>(std::ifstream(file) >> replica); }));
  ::unlink(file.c_str());
  ASSERT_TRUE(wait_until([&] { return !process_status(replica); }));
  EXPECT_FALSE(wait_until([&] { return is_gone_or_zombie(program.pid()); }, 1.5));
  ::kill(program.pid(), SIGINT);
  EXPECT_TRUE(wait_until([&] { return is_gone_or_zombie(program.pid()); }));
  EXPECT_EQ(program.wait(), 130);
}

TEST(LauncherOutput, FloodDoesNotGrowTheLaunchersMemory) {
  Program program(probe_launch({"-n", "2"}, {"flood"}));
  // The replicas are faster than this reader.
  ASSERT_TRUE(program.read_output(30'000'000));
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
  Program program(
      {"sh", "-c", shell_quote(probe_launch({"-n", "2"}, {"register", "out=x"})) + "<&- >&- 2>&-"});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherOutput, DeathReportHoldsTheLastTwelveLinesOnStandardError) {
  std::vector<std::string> actions = {"register"};
  for (int i = 1; i <= 14; ++i) actions.push_back("err=line " + std::to_string(i));
  actions.insert(actions.end(), {"err=" + std::string(1000, 'x'), "exit=4"});
  const RecordedRun run = run_probe(1, actions);
  const auto& lines = run.result.deaths.at(0).last_stderr_lines;
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines.front(), "line 4");
  EXPECT_EQ(lines.back(), std::string(400, 'x') + " ...");
}

TEST(LauncherOutput, DeathReportHoldsALastLineWithoutAnEnd) {
  // The helper holds the pipe open: it does not end with the replica.
  const RecordedRun run = run_probe(1, {"register", "child", "err_partial=boom", "exit=4"});
  EXPECT_THAT(run.result.deaths.at(0).last_stderr_lines, ElementsAre("boom"));
}

}  // namespace
}  // namespace lockstep::launch
