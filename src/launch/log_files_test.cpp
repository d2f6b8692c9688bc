#include "src/launch/log_files.h"

#include <signal.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/temp_folder.h"
#include "src/launch/launch_test_support.h"

namespace lockstep::launch {
namespace {

using base::read_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LogFilesTest : public testing::Test {
 protected:
  std::string logs() const { return folder_.path("deep/logs"); }
  std::string log(const std::string& name) const { return read_file(logs() + "/" + name); }

  RecordedRun run(uint32_t replica_count, const std::vector<std::string>& actions) const {
    LaunchOptions options;
    options.replica_count = replica_count;
    options.command = probe_replica(actions);
    options.log_folder = logs();
    return run_recorded(options);
  }

  std::string refusal(const std::string& path) const {
    try {
      LogFiles files(path, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      return error.what();
    }
    return "";
  }

  base::TempFolder folder_;
};

TEST_F(LogFilesTest, KeepTheBytesOfEachStreamOfEachRank) {
  const RecordedRun result =
      run(3, {"register", "0:out=hello", "1:err=oops", "2:bytes=200000", "2:err_partial=50 %"});
  EXPECT_EQ(result.result.exit_status, 0) << result.all();
  EXPECT_EQ(log("rank-0.out"), "hello\n");
  EXPECT_EQ(log("rank-0.err"), "");
  EXPECT_EQ(log("rank-1.out"), "");
  EXPECT_EQ(log("rank-1.err"), "oops\n");
  EXPECT_EQ(log("rank-2.out"), std::string(200000, 'x'));
  EXPECT_EQ(log("rank-2.err"), "50 %");
}

TEST_F(LogFilesTest, KeepBytesThatAreNoText) {
  LogFiles files(logs(), 1);
  const std::string bytes("a\0\r\n\xff\x1b[K", 9);
  files.append(0, false, bytes);
  files.append(0, false, "");
  EXPECT_EQ(log("rank-0.out"), bytes);
}

TEST_F(LogFilesTest, LaterProcessesAppend) {
  run(1, {"out=first"});
  run(1, {"out=second"});
  EXPECT_EQ(log("rank-0.out"), "first\nsecond\n");
}

TEST_F(LogFilesTest, KeepWhatComesAfterADeath) {
  // What a replica's helper prints goes on after it.
  const RecordedRun result = run(1, {"register", "child", "err=last words", "exit=3"});
  EXPECT_EQ(result.result.exit_status, 3) << result.all();
  EXPECT_EQ(log("rank-0.err"), "last words\n");
}

TEST_F(LogFilesTest, PlaceThatCannotBeWrittenToIsRefusedBeforeTheStart) {
  const std::string file = folder_.write("file", "");
  EXPECT_THAT(refusal(file), HasSubstr("'" + file + "' (--log-dir): "));
  EXPECT_THAT(refusal(file + "/below"), HasSubstr("(--log-dir): Not a directory"));
  EXPECT_THAT(refusal("/proc/nope"), HasSubstr("'/proc/nope' (--log-dir): No such file"));
  const std::string folder = folder_.path("closed");
  ASSERT_EQ(::mkdir(folder.c_str(), 0555), 0);
  {
    const base::WithoutRoot nobody;
    EXPECT_THAT(refusal(folder), HasSubstr("rank-0.out' (--log-dir): Permission denied"));
  }
  LaunchOptions options;
  options.command = probe_replica({"pid=" + folder_.path("started")});
  options.log_folder = file;
  EXPECT_THROW(run_group(options), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("started")));
}

TEST_F(LogFilesTest, PipesAndFoldersInTheirPlacesAreRefused) {
  std::filesystem::create_directories(logs());
  ASSERT_EQ(::mkfifo((logs() + "/rank-1.err").c_str(), 0600), 0);
  EXPECT_THAT(refusal(logs()), HasSubstr("rank-1.err' (--log-dir): it is a named pipe"));
  std::filesystem::remove(logs() + "/rank-0.out");
  std::filesystem::create_directories(logs() + "/rank-0.out");
  EXPECT_THAT(refusal(logs()), HasSubstr("rank-0.out' (--log-dir): it is a folder"));
}

TEST_F(LogFilesTest, FullDiskIsToldOnceAndEndsInStatusOneThoughAllGoesOn) {
  std::filesystem::create_directories(logs());
  for (const char* name : {"rank-0.out", "rank-1.out"}) {
    std::filesystem::create_symlink("/dev/full", logs() + "/" + name);
  }
  const RecordedRun result = run(2, {"register", "lines=100", "err=to the end"});
  EXPECT_EQ(result.result.exit_status, 1) << result.all();
  EXPECT_THAT(result.notices,
              ElementsAre(testing::AllOf(HasSubstr("cannot write to '" + logs() + "/rank-"),
                                         HasSubstr(".out': No space left on device"))));
  EXPECT_THAT(failure_report(result.result), HasSubstr("No space left on device"));
  EXPECT_THAT(result.result.deaths, IsEmpty());
  EXPECT_TRUE(result.has_line("1 out line 99")) << result.all();
  EXPECT_EQ(log("rank-0.err"), "to the end\n");
  EXPECT_EQ(log("rank-1.err"), "to the end\n");
}

TEST_F(LogFilesTest, FileSizeLimitIsNoDeathOfTheLauncher) {
  // The limit, 65536 x 512 bytes, leaves room for the control block. The file is sparse.
  std::filesystem::create_directories(logs());
  std::ofstream(logs() + "/rank-0.out");
  std::filesystem::resize_file(logs() + "/rank-0.out", 65536 * 512 - 50000);
  const auto command = probe_launch({"-n", "1", "--raw", "--log-dir", logs()},
                                    {"register", "bytes=100000", "out=", "out=done"});
  Program program({"sh", "-c", "ulimit -f 65536; exec " + shell_quote(command)});
  EXPECT_EQ(program.wait(), 1) << program.error_output();
  EXPECT_EQ(program.output(), std::string(100000, 'x') + "\ndone\n");
  EXPECT_THAT(program.error_output(), HasSubstr("File too large"));
}

TEST_F(LogFilesTest, FailureKeepsItsStatusWhereTheDiskIsFullAsWell) {
  std::filesystem::create_directories(logs());
  std::filesystem::create_symlink("/dev/full", logs() + "/rank-0.out");
  EXPECT_EQ(run(1, {"register", "out=x", "exit=7"}).result.exit_status, 7);
}

TEST_F(LogFilesTest, RanksThatAreNotShownAreKept) {
  LaunchOptions options;
  options.replica_count = 3;
  options.command = probe_replica({"register", "0:out=zero", "1:out=one", "2:err=two"});
  options.log_folder = logs();
  options.is_shown = {false, true, false};
  const RecordedRun result = run_recorded(options);
  EXPECT_THAT(result.lines, ElementsAre("1 out one"));
  EXPECT_EQ(log("rank-0.out"), "zero\n");
  EXPECT_EQ(log("rank-2.err"), "two\n");
}

TEST(Tee, LastLinesOfAFailureAreShownThoughItsRankIsNot) {
  Program program(
      probe_launch({"-n", "2", "--tee", "none"},
                   {"register", "out=hidden", "1:err=boom", "1:exit=3", "wait_ended=1"}));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(program.output(), "");
  EXPECT_THAT(program.error_output(), HasSubstr("rank 1 failed first"));
  EXPECT_THAT(program.error_output(), HasSubstr("\n  | boom\n"));
}

}  // namespace
}  // namespace lockstep::launch
