#include "src/launch/launcher.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/launch/launch_test_support.h"

namespace lockstep::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Launcher, EndsWithZeroWhenAllReplicasDo) {
  const RecordedRun run = run_probe(3, {"register", "out=hello"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  for (const char* line : {"0 out hello", "1 out hello", "2 out hello"}) {
    EXPECT_TRUE(run.has_line(line)) << run.all();
  }
  EXPECT_THAT(run.result.deaths, IsEmpty());
  EXPECT_EQ(failure_report(run.result), "");
}

TEST(Launcher, RunsProgramsThatNeverRegister) {
  const RecordedRun run = run_probe(2, {"out=hello"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
}

TEST(Launcher, ProgramIsSoughtInPathAndNoShellReadsItsArguments) {
  LaunchOptions options;
  options.command = {"echo", "$HOME; 'x' *"};
  const RecordedRun run = run_recorded(options);
  EXPECT_EQ(run.result.exit_status, 0);
  EXPECT_TRUE(run.has_line("0 out $HOME; 'x' *")) << run.all();
}

TEST(Launcher, ReplicasReadNothingFromStandardInput) {
  Program program(
      {"sh", "-c",
       "echo secret | " + shell_quote({probe_path(), "launch", "-n", "2", "--", "cat"})});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "");
}

TEST(Launcher, FailureBeforeRegistrationEndsTheRunWithItsStatus) {
  const RecordedRun run = run_probe(4, {"2:err=no data file", "2:exit=3", "sleep"});
  EXPECT_EQ(run.result.exit_status, 3) << run.all();
  EXPECT_LT(run.result.seconds, 10);
  EXPECT_THAT(run.notices, IsEmpty());
  const std::string report = failure_report(run.result);
  EXPECT_THAT(report, HasSubstr("rank 2 failed first: it ended with exit status 3 before"));
  EXPECT_THAT(report, HasSubstr("no data file"));
  EXPECT_THAT(report, HasSubstr("ranks 0, 1, 3 ended as a consequence"));
  for (size_t i = 1; i < run.result.deaths.size(); ++i) {
    EXPECT_TRUE(run.result.deaths[i].is_consequence);
    EXPECT_EQ(run.result.deaths[i].cause, DeathCause::kLauncher);
  }
}

TEST(Launcher, FailureBeforeRegistrationLeavesTheOthersAloneWhereToldSo) {
  LaunchOptions options;
  options.replica_count = 2;
  options.command = probe_replica({"1:exit=3", "register", "wait_ended=1", "out=done"});
  options.end_on_failure_before_registration = false;
  const RecordedRun run = run_recorded(options);
  EXPECT_EQ(run.result.exit_status, 3) << run.all();
  EXPECT_TRUE(run.has_line("0 out done")) << run.all();
}

TEST(Launcher, SignalBeforeRegistrationEndsTheRunWith128AndTheSignal) {
  EXPECT_EQ(run_probe(2, {"1:raise=9", "sleep"}).result.exit_status, 137);
  EXPECT_EQ(run_probe(2, {"0:raise=11", "sleep"}).result.exit_status, 139);
}

TEST(Launcher, KillFromOutsideDoesNotFailARunThatOthersFinish) {
  const RecordedRun run =
      run_probe(3, {"register", "2:step=37", "2:raise=9", "wait_ended=2", "exit=0"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  ASSERT_EQ(run.result.deaths.size(), 1u);
  EXPECT_EQ(run.result.deaths[0].rank, 2u);
  EXPECT_EQ(run.result.deaths[0].step, 37u);
  EXPECT_EQ(run.result.deaths[0].cause, DeathCause::kOutside);
  EXPECT_THAT(run.notices,
              ElementsAre("rank 2 was killed by signal 9 (Killed) in step 37; the others go on"));
}

TEST(Launcher, KillAfterTheOthersHaveFinishedFailsTheRun) {
  const RecordedRun run = run_probe(2, {"register", "0:exit=0", "wait_ended=0", "raise=9"});
  EXPECT_EQ(run.result.exit_status, 137) << run.all();
}

TEST(Launcher, FaultFailsTheRunThoughOthersFinish) {
  RecordedRun run = run_probe(
      2, {"register", "1:step=5", "1:microbatch=3", "1:err=boom-1", "1:exit=7", "wait_ended=1"});
  EXPECT_EQ(run.result.exit_status, 7) << run.all();
  EXPECT_TRUE(run.result.deaths.at(0).is_fault);
  EXPECT_THAT(run.notices, Contains(HasSubstr("in step 5, microbatch 3; the others go on")));
  EXPECT_THAT(failure_report(run.result), HasSubstr("  | boom-1"));

  run = run_probe(2, {"register", "1:raise=11", "wait_ended=1"});
  EXPECT_EQ(run.result.exit_status, 139) << run.all();
  EXPECT_THAT(failure_report(run.result), HasSubstr("signal 11 (Segmentation fault)"));

  run = run_probe(2, {"register", "1:throw=boom-2", "wait_ended=1"});
  EXPECT_EQ(run.result.exit_status, 134) << run.all();
  EXPECT_THAT(failure_report(run.result), HasSubstr("boom-2"));
}

TEST(Launcher, CopiesThatDifferAtTheEndFailTheRunByName) {
  const RecordedRun run =
      run_probe(4, {"register", "copy=5:17", "2:copy=5:18", "3:copy=4:19", "exit=0"});
  EXPECT_EQ(run.result.exit_status, 1) << run.all();
  EXPECT_THAT(failure_report(run.result),
              HasSubstr("rank 2's copy of the model differs from rank 0's after the last update (5 "
                        "in all)"));
}

TEST(Launcher, CopiesOfReplicasThatDiedOrLeftEarlyAreNotCompared) {
  const RecordedRun run = run_probe(3, {"register", "copy=5:17", "1:copy=4:18", "2:copy=5:18",
                                        "2:raise=9", "wait_ended=2", "exit=0"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
}

TEST(Launcher, NobodyIsSaidToGoOnWhereAllFailAlike) {
  const RecordedRun run =
      run_probe(3, {"register", "wait_registered=0", "wait_registered=1", "wait_registered=2",
                    "step=4", "err=the loss is not finite", "exit=1"});
  EXPECT_EQ(run.result.exit_status, 1) << run.all();
  EXPECT_THAT(run.notices, IsEmpty());
  EXPECT_THAT(failure_report(run.result), HasSubstr("ended in the same way"));
  EXPECT_THAT(failure_report(run.result), Not(HasSubstr("consequence")));
}

TEST(Launcher, OthersAreSaidToGoOnOnceTheyHaveForAWhile) {
  LaunchOptions options;
  options.replica_count = 2;
  options.command = probe_replica({"register", "1:wait_registered=0", "1:exit=7", "sleep"});
  options.grace = std::chrono::milliseconds(0);
  std::vector<std::string> notices;
  options.on_notice = [&](std::string_view notice) {
    notices.emplace_back(notice);
    ::raise(SIGTERM);  // enough seen
  };
  EXPECT_EQ(run_group(options).exit_status, 143);
  EXPECT_THAT(notices, ElementsAre("rank 1 ended with exit status 7; the others go on"));
}

TEST(Launcher, AnnouncedDrillIsToldFromAnOutsideKill) {
  const RecordedRun run = run_probe(2, {"register", "1:drill", "wait_ended=1"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_EQ(run.result.deaths.at(0).cause, DeathCause::kDrill);
}

TEST(Launcher, AllDeadGivesTheFirstFailuresStatus) {
  const RecordedRun run =
      run_probe(3, {"register", "0:wait_registered=2", "0:exit=5", "wait_ended=0", "exit=1"});
  EXPECT_EQ(run.result.exit_status, 5) << run.all();
  EXPECT_THAT(failure_report(run.result), HasSubstr("rank 0 failed first"));
  EXPECT_THAT(failure_report(run.result), HasSubstr("ranks 1, 2 ended as a consequence"));
}

TEST(Launcher, MissingProgramIsOneSentenceAndStatus127) {
  LaunchOptions options;
  options.replica_count = 4;
  options.command = {"/no/such/program"};
  RecordedRun run = run_recorded(options);
  EXPECT_EQ(run.result.exit_status, 127);
  EXPECT_THAT(run.notices, IsEmpty());
  EXPECT_EQ(failure_report(run.result),
            "cannot start '/no/such/program': No such file or directory");

  options.command = {"/etc/passwd"};
  run = run_recorded(options);
  EXPECT_EQ(run.result.exit_status, 126);
  EXPECT_EQ(failure_report(run.result), "cannot start '/etc/passwd': Permission denied");
}

TEST(Launcher, RefusesNoCommandAndImpossibleCounts) {
  LaunchOptions options;
  EXPECT_THROW(run_group(options), Error);
  options.command = {"true"};
  options.replica_count = 0;
  EXPECT_THROW(run_group(options), Error);
  options.replica_count = 257;
  EXPECT_THROW(run_group(options), Error);
}

// A wrapper script is the child, the replica its child.
RecordedRun run_wrapped(uint32_t replica_count, const std::vector<std::string>& actions,
                        const std::string& after) {
  LaunchOptions options;
  options.replica_count = replica_count;
  options.command = {"sh", "-c", shell_quote(probe_replica(actions)) + after};
  return run_recorded(options);
}

TEST(Launcher, ReplicaBehindAWrapperIsWatchedItself) {
  const RecordedRun run =
      run_wrapped(2, {"register", "1:step=4", "1:raise=9", "wait_ended=1"}, "; true");
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  ASSERT_EQ(run.result.deaths.size(), 1u) << run.all();
  EXPECT_EQ(run.result.deaths[0].wait_status, SIGKILL);
}

TEST(Launcher, DeathBehindAWrapperThatGoesOnWakesTheOthersAtOnce) {
  // The wrapper of rank 1 stays until rank 0 has seen its replica's death and ended.
  const std::string fifo = temp_path("wrapper");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const RecordedRun run = run_wrapped(2, {"register", "1:exit=3", "wait_ended=1", "out=seen"},
                                      "; status=$?; if [ $RANK = 1 ]; then read line <" + fifo +
                                          "; else echo >" + fifo + "; fi; exit $status");
  ::unlink(fifo.c_str());
  EXPECT_TRUE(run.has_line("0 out seen")) << run.all();
  EXPECT_EQ(run.result.exit_status, 3) << run.all();
}

TEST(Launcher, FailureOfTheWrapperAfterASuccessCounts) {
  const RecordedRun run = run_wrapped(1, {"register"}, "; exit 9");
  EXPECT_EQ(run.result.exit_status, 9) << run.all();
}

TEST(Launcher, ReplicaWhoseWrapperIsKilledIsWatchedOn) {
  const RecordedRun run = run_wrapped(
      2, {"register", "0:kill_parent", "0:exit=5", "wait_ended=0", "out=seen"}, "; true");
  EXPECT_TRUE(run.has_line("1 out seen")) << run.all();
  EXPECT_EQ(run.result.exit_status, 5) << run.all();
}

TEST(Launcher, ExitOfAReplicaIsKnownThoughItsWrapperDoesNotPassItOn) {
  for (int round = 0; round < 20; ++round) {
    const RecordedRun run = run_wrapped(1, {"register", "exit=3"}, "; true");
    ASSERT_EQ(run.result.exit_status, 3) << run.all();
  }
}

TEST(Launcher, SecondProgramInOnePlaceIsRefused) {
  const std::string second = "; " + shell_quote(probe_replica({"register"}));
  const RecordedRun run = run_wrapped(1, {"register"}, second);
  EXPECT_NE(run.result.exit_status, 0);
  EXPECT_THAT(run.all(), HasSubstr("refused"));
}

TEST(Launcher, WrapperThatClosesDescriptorsIsNamed) {
  const RecordedRun run = run_probe(1, {"close=LOCKSTEP_SOCKET_FD", "register"});
  EXPECT_EQ(run.result.exit_status, 134) << run.all();
  EXPECT_THAT(run.all(), HasSubstr("LOCKSTEP_SOCKET_FD"));
  EXPECT_THAT(run.all(), HasSubstr("did a wrapper"));
}

TEST(Launcher, ArenaOfferedByOneReachesAllAndALateOne) {
  const RecordedRun run = run_probe(
      3, {"register", "1:request=7:shared text", "0:wait_registered=2", "0:offer=7:shared text",
          "0:exit=0", "2:wait_ended=0", "request=7:shared text"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
}

TEST(Launcher, SecondOfferOfAnArenaIsRefused) {
  const RecordedRun run = run_probe(2, {"register", "0:offer=1:first", "0:exit=0", "1:wait_ended=0",
                                        "1:offer=1:second", "request=1:first"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_TRUE(run.has_line("1 out offer refused"));
}

TEST(Launcher, DeathWakesASleeper) {
  // wait_ended sleeps for a minute unless it is woken, and has given up then.
  const RecordedRun run = run_probe(2, {"register", "0:wait_registered=1", "0:wait_ended=1",
                                        "0:out=awake", "0:exit=0", "wait_registered=0", "raise=9"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_TRUE(run.has_line("0 out awake")) << run.all();
  EXPECT_LT(run.result.seconds, 20);
}

TEST(Launcher, ReplicaAwaitedTooLongIsNamedAndKilled) {
  const RecordedRun run =
      run_probe(2, {"register", "1:step=12", "1:microbatch=3", "1:out=there", "1:stop",
                    "wait_registered=1", "ask_kill=1", "wait_ended=1"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_THAT(run.notices, Contains(HasSubstr("rank 0 has waited 300 seconds for rank 1")));
  EXPECT_EQ(run.result.deaths.at(0).cause, DeathCause::kRequested);
}

TEST(Launcher, ReplicaThatNeverRegistersIsNamedAndKilled) {
  const std::vector<std::string> actions = {"1:sleep",      "register", "ask_kill=1",
                                            "wait_ended=1", "out=seen", "sleep"};
  const RecordedRun run = run_probe(2, actions);
  EXPECT_EQ(run.result.exit_status, 137) << run.all();
  EXPECT_THAT(run.notices, ElementsAre("rank 0 has waited 300 seconds for rank 1: killing rank 1"));
  EXPECT_THAT(failure_report(run.result),
              HasSubstr("rank 1 failed first: it was killed by signal 9 (Killed) before it had "
                        "joined the group"));
  EXPECT_EQ(run.result.deaths.at(0).cause, DeathCause::kRequested);
}

TEST(Launcher, GrandchildrenAreEndedWithTheRun) {
  const auto begin = std::chrono::steady_clock::now();
  const RecordedRun run = run_probe(2, {"register", "child"});
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  // Its pipes, held open by the helper, are waited for no longer than a second.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(Launcher, ForeignChildrenOfTheCallerAreLeftAlone) {
  const pid_t foreign = fork_child(sleep_for_ever);
  run_probe(1, {"register"});
  EXPECT_EQ(::waitpid(foreign, nullptr, WNOHANG), 0);
  ::kill(foreign, SIGKILL);
  ::waitpid(foreign, nullptr, 0);
}

TEST(Launcher, ManyRunsLeaveNothingBehind) {
  run_probe(2, {"register"});
  const size_t descriptors = open_descriptor_count();
  for (int round = 0; round < 200; ++round) {
    const RecordedRun run = run_probe(2, {"register"});
    ASSERT_EQ(run.result.exit_status, 0) << "round " << round << "\n" << run.all();
  }
  EXPECT_EQ(open_descriptor_count(), descriptors);
  EXPECT_THAT(descendants(::getpid(), {}), IsEmpty());
}

TEST(Launcher, ExceptionInACallbackLeavesNothingBehind) {
  LaunchOptions options;
  options.replica_count = 2;
  options.command = probe_replica({"register", "out=hello", "sleep"});
  options.on_line = [](const OutputLine&) -> bool { throw std::runtime_error("callback"); };
  EXPECT_THROW(run_group(options), std::runtime_error);
  EXPECT_THAT(descendants(::getpid(), {}), IsEmpty());
}

TEST(Launcher, TicksDuringTheRunAndAfterTheLastExit) {
  LaunchOptions options;
  options.command = probe_replica({"register"});
  uint32_t last_state = 0;
  options.on_tick = [&](exchange::ControlBlock& control) {
    EXPECT_EQ(control.reporting, 1u);
    last_state = control.processes[control.seat[0]].state;
  };
  run_group(options);
  EXPECT_EQ(last_state, static_cast<uint32_t>(exchange::ProcessState::kEnded));
}

TEST(Launcher, ControlBlockHoldsTheOptions) {
  LaunchOptions options;
  options.replica_count = 2;
  options.thread_count = 3;
  options.core_count = 5;
  options.timeout = std::chrono::milliseconds(1234);
  options.command = {"true"};
  int ticks = 0;
  options.on_tick = [&](exchange::ControlBlock& control) {
    ++ticks;
    EXPECT_EQ(control.replica_count, 2u);
    EXPECT_EQ(control.thread_count, 3u);
    EXPECT_EQ(control.core_count, 5u);
    EXPECT_EQ(control.timeout_ms, 1234u);
  };
  run_group(options);
  EXPECT_GT(ticks, 0);
}

TEST(Launcher, ReplicaThatWaitsForRoomInItsReportRingIsWokenAndNoReportIsLost) {
  constexpr uint64_t kCount = exchange::ReportRing::kCapacity * 3 + 7;
  LaunchOptions options;
  options.command = probe_replica({"register", "reports=" + std::to_string(kCount)});
  uint64_t last_step = 0;
  options.on_tick = [&](exchange::ControlBlock& control) {
    exchange::StepReport report{};
    while (exchange::pop_report(control, 0, report)) ASSERT_EQ(report.step, ++last_step);
  };
  EXPECT_EQ(run_group(options).exit_status, 0);
  EXPECT_EQ(last_step, kCount);
}

// What a process knows of signals, as lines of /proc/PID/status.
std::vector<std::string> signal_lines(std::istream& status) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk") || line.starts_with("SigIgn")) lines.push_back(line);
  }
  return lines;
}

TEST(Launcher, CallerAndReplicasHaveTheSignalsAndLimitsOfBefore) {
  struct sigaction mine {};
  mine.sa_handler = [](int) {};
  ::sigaction(SIGINT, &mine, nullptr);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_DFL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = 200;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::ifstream status("/proc/self/status");
  const auto before = signal_lines(status);

  LaunchOptions options;
  options.command = {"sh", "-c", "cat /proc/self/status; ulimit -n"};
  std::stringstream printed;
  options.on_line = [&](const OutputLine& line) {
    printed << line.text << '\n';
    return true;
  };
  EXPECT_EQ(run_group(options).exit_status, 0);
  EXPECT_THAT(printed.str(), testing::EndsWith("\n200\n"));
  EXPECT_EQ(signal_lines(printed), before);

  for (const int signal : {SIGINT, SIGHUP, SIGPIPE}) {
    struct sigaction after {};
    ::sigaction(signal, nullptr, &after);
    EXPECT_EQ(after.sa_handler, signal == SIGINT   ? mine.sa_handler
                                : signal == SIGHUP ? SIG_IGN
                                                   : SIG_DFL);
    ::signal(signal, SIG_DFL);
  }
  int is_subreaper = -1;
  ::prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
  EXPECT_EQ(is_subreaper, 0);
  ::getrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(files.rlim_cur, 200u);
}

TEST(LauncherDeathTest, SecondRunInOneProcessIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  LaunchOptions options;
  options.command = {"true"};
  options.on_tick = [](exchange::ControlBlock&) {
    LaunchOptions inner;
    inner.command = {"true"};
    run_group(inner);
  };
  EXPECT_DEATH(run_group(options), "one run at a time in a process");
}

TEST(Launcher, ReplicasSeeTheTruthNotInheritedVariables) {
  ::setenv("WORLD_SIZE", "4", 1);
  ::setenv("MASTER_ADDR", "nowhere", 1);
  const RecordedRun run = run_probe(
      2, {"getenv=RANK", "getenv=WORLD_SIZE", "getenv=MASTER_ADDR", "getenv=OMP_NUM_THREADS"});
  ::unsetenv("WORLD_SIZE");
  ::unsetenv("MASTER_ADDR");
  for (const char* line : {"1 out RANK=1", "1 out WORLD_SIZE=2", "1 out MASTER_ADDR=(unset)",
                           "0 out OMP_NUM_THREADS=1"}) {
    EXPECT_TRUE(run.has_line(line)) << line << "\n" << run.all();
  }
  EXPECT_THAT(run.notices, Contains(HasSubstr("WORLD_SIZE=4 in the environment is not used")));
}

TEST(Launcher, ControlBlockStaysSparse) {
  LaunchOptions options;
  options.command = probe_replica({"register"});
  uint64_t kilobytes = 0;
  options.on_tick = [&](exchange::ControlBlock&) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry, error);
      if (target.string().find("lockstep-control") == std::string::npos) continue;
      struct stat status {};
      if (::stat(entry.path().c_str(), &status) == 0) {
        kilobytes = static_cast<uint64_t>(status.st_blocks) / 2;
      }
    }
  };
  run_group(options);
  EXPECT_GT(kilobytes, 0u);
  EXPECT_LT(kilobytes, 256u);
}

}  // namespace
}  // namespace lockstep::launch
