#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/launch_test_support.h"

// However a run ends, nothing of it is left.

namespace lockstep::launch {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// No test waits that long: where one passes, it was not the grace that ended its replicas.
const std::vector<std::string> kTwoWithLongGrace = {"-n", "2", "--grace", "1000000"};

// Two replicas that run until they are ended, with a helper each that hides in a session of its
// own.
std::vector<std::string> steady_run() {
  return probe_launch(kTwoWithLongGrace, {"register", "child", "out=steady", "sleep"});
}

// The same, deaf to ctrl-C and SIGTERM.
std::vector<std::string> deaf_run() {
  return probe_launch(kTwoWithLongGrace,
                      {"ignore=2", "ignore=15", "register", "child", "out=steady", "sleep"});
}

// The same as steady_run(), each replica below a shell that goes on after it.
std::vector<std::string> wrapped_run() {
  std::vector<std::string> command = {probe_path(), "launch"};
  command.insert(command.end(), kTwoWithLongGrace.begin(), kTwoWithLongGrace.end());
  const auto replica = probe_replica({"register", "child", "out=steady", "sleep"});
  command.insert(command.end(), {"--", "sh", "-c", shell_quote(replica) + "; true"});
  return command;
}

TEST(LauncherEnd, HardKillOfTheLauncherLeavesNothing) {
  Program program(steady_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  // The launcher, its sweeper, two replicas, two helpers: the test sees what it is to see gone.
  EXPECT_EQ(living_descendants().size(), 6u);
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, HardKillWhileReplicasAreStoppedLeavesNothing) {
  Program program(probe_launch({"-n", "2"}, {"register", "out=steady", "stop"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, HardKillAtAnyMomentOfTheStartLeavesNothing) {
  for (int microseconds = 0; microseconds < 20'000; microseconds += 500) {
    Program program(probe_launch({"-n", "4"}, {"register", "child", "sleep"}));
    ::usleep(
        static_cast<useconds_t>(microseconds));  // not to wait for anything: to try many moments
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.wait(), 137);
    ASSERT_TRUE(all_gone()) << "after " << microseconds << " us";
  }
}

TEST(LauncherEnd, HardKillWithWrappersLeavesNothing) {
  Program program(wrapped_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  EXPECT_EQ(living_descendants().size(), 8u);  // with two shells
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, HardKillWithWrappersThatNeverRegisterLeavesNothing) {
  Program program({probe_path(), "launch", "-n", "2", "--", "sh", "-c",
                   "echo steady; setsid sleep 1000 & sleep 1000"});
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TermEndsInOrderWith143) {
  Program program(steady_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_EQ(program.error_output(), "lockstep: ended by signal 15 (Terminated)\n");
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, TermEndsWrappersAndWhatTheyStarted) {
  Program program(wrapped_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, ReplicaThatIgnoresTermIsKilledAfterTheGrace) {
  Program program(probe_launch({"-n", "2", "--grace", "300"},
                               {"ignore=15", "register", "out=steady", "sleep"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  const auto begin = std::chrono::steady_clock::now();
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300));
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, SecondTermDoesNotWaitForTheGrace) {
  Program program(deaf_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(0.3), 200);  // still waiting
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, StoppedReplicasAreEndedByTermToo) {
  Program program(probe_launch(kTwoWithLongGrace, {"register", "out=steady", "stop"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, HangUpEndsWith129) {
  Program program(steady_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait(), 129);
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, IgnoredHangUpStaysIgnored) {
  std::vector<std::string> command = steady_run();
  command.insert(command.begin(), "nohup");
  Program program(command);
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait(0.3), 200);  // it goes on
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
}

TEST(LauncherEnd, TermToTheProcessGroupEndsInOrder) {
  for (int round = 0; round < 20; ++round) {
    Program program(steady_run(), Program::Place::kOwnGroup);
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    ::kill(-program.pid(), SIGTERM);
    ASSERT_EQ(program.wait(), 143) << program.error_output();
    ASSERT_EQ(program.error_output(), "lockstep: ended by signal 15 (Terminated)\n");
    EXPECT_THAT(living_descendants(), IsEmpty());
  }
}

TEST(LauncherEnd, KillOfTheProcessGroupLeavesNothing) {
  Program program(steady_run(), Program::Place::kOwnGroup);
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(-program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, InterruptOfTheLauncherEndsEverythingAtOnce) {
  for (const auto& command : {steady_run(), deaf_run(), wrapped_run()}) {
    Program program(command);
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    ::kill(program.pid(), SIGINT);
    EXPECT_EQ(program.wait(), 130);
    EXPECT_EQ(program.error_output(), "lockstep: interrupted\n");
    EXPECT_THAT(living_descendants(), IsEmpty());
  }
}

TEST(LauncherEnd, InterruptOfTheProcessGroupEndsEverythingAtOnce) {
  for (const auto& command : {steady_run(), deaf_run(), wrapped_run()}) {
    Program program(command, Program::Place::kOwnGroup);
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    ::kill(-program.pid(), SIGINT);
    EXPECT_EQ(program.wait(), 130);
    EXPECT_EQ(program.error_output(), "lockstep: interrupted\n");
    EXPECT_THAT(living_descendants(), IsEmpty());
  }
}

TEST(LauncherEnd, ControlCOnATerminalEndsEverythingAtOnce) {
  for (const auto& command : {steady_run(), deaf_run(), wrapped_run()}) {
    Program program(command, Program::Place::kTerminal);
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    ASSERT_EQ(::write(program.output_fd(), "\x03", 1), 1);
    EXPECT_EQ(program.wait(), 130);
    EXPECT_THAT(program.output(), EndsWith("lockstep: interrupted\r\n"));
    EXPECT_THAT(program.output(), Not(HasSubstr("the others go on")));
    EXPECT_THAT(living_descendants(), IsEmpty());
  }
}

TEST(LauncherEnd, InterruptAtAnyMomentOfTheStartLeavesNothing) {
  for (int microseconds = 0; microseconds < 20'000; microseconds += 1000) {
    Program program(probe_launch({"-n", "4"}, {"register", "child", "sleep"}));
    ::usleep(
        static_cast<useconds_t>(microseconds));  // not to wait for anything: to try many moments
    ::kill(program.pid(), SIGINT);
    EXPECT_EQ(program.wait(), 130);
    ASSERT_TRUE(all_gone()) << "after " << microseconds << " us";
  }
}

TEST(LauncherEnd, TerminalThatGoesAwayLeavesNothing) {
  Program program(steady_run(), Program::Place::kTerminal);
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  program.close_output();
  EXPECT_EQ(program.wait(), 129);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TimeoutCommandEndsIt) {
  std::vector<std::string> command = steady_run();
  command.insert(command.begin(), {"timeout", "1"});
  Program program(command);
  EXPECT_EQ(program.wait(), 124);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TimeoutCommandWithKillLeavesNothing) {
  std::vector<std::string> command = steady_run();
  command.insert(command.begin(), {"timeout", "-s", "KILL", "1"});
  Program program(command);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

// The launcher among the living: its parent is this process or the setsid that waits for it.
pid_t launcher_of(const Program& program) {
  for (const pid_t pid : living_descendants()) {
    const auto status = process_status(pid);
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.starts_with(probe_path() + std::string(1, '\0') + "launch") && status &&
        (status->parent == ::getpid() || status->parent == program.pid())) {
      return pid;
    }
  }
  return -1;
}

TEST(LauncherEnd, SetsidAndNoJobControlMakeNoDifference) {
  for (const char* wrapper : {"setsid -w", "exec"}) {
    Program program({"sh", "-c", wrapper + (" " + shell_quote(steady_run()))});
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    const pid_t launcher = launcher_of(program);
    ASSERT_GT(launcher, 0) << wrapper;
    ::kill(launcher, SIGTERM);
    EXPECT_EQ(program.wait(), 143) << wrapper;
    EXPECT_TRUE(all_gone());
  }
}

// A run of two replicas that print a line each, below a shell with `before` done.
void expect_run_in(const std::string& before) {
  Program program(
      {"sh", "-c",
       before + " " + shell_quote(probe_launch({"-n", "2"}, {"register", "out=there"}))});
  EXPECT_EQ(program.wait(), 0) << before << "\n" << program.error_output();
  EXPECT_TRUE(program.wait_for_output("] there\n", 2)) << before;
  EXPECT_EQ(program.error_output(), "") << before;
  EXPECT_TRUE(all_gone()) << before;
}

TEST(LauncherEnd, OddSurroundingsMakeNoDifference) {
  const std::string folder = temp_path("gone");
  for (const std::string& before :
       {std::string("env -i"), std::string("unset HOME PATH;"), std::string("umask 077;"),
        std::string("exec <&-;"), std::string("setsid -w"), std::string("nohup"),
        std::string("timeout -k 1 60"), std::string("ulimit -c 0; ulimit -s 1024;"),
        "mkdir " + folder + " && cd " + folder + " && rmdir " + folder + " &&"}) {
    expect_run_in(before);
  }
}

#ifndef LOCKSTEP_SANITIZED  // a sanitizer's shadow takes terabytes of addresses
TEST(LauncherEnd, LittleAddressSpaceIsEnoughOrNamed) {
  expect_run_in("ulimit -v 400000;");
  const auto command = shell_quote(probe_launch({"-n", "2"}, {"register"}));
  Program program({"sh", "-c", "ulimit -v 20000; exec " + command});
  EXPECT_EQ(program.wait(), 1) << program.error_output();
  EXPECT_THAT(program.error_output(), testing::StartsWith("lockstep: "));
  EXPECT_TRUE(all_gone());
}
#endif

TEST(LauncherEnd, ClosedStandardStreamsEndInTheSameStatus) {
  for (const auto& [status, action] : {std::pair(0, "exit=0"), std::pair(7, "exit=7")}) {
    const auto command = probe_launch({"-n", "2"}, {"register", "out=x", "err=y", action});
    Program program({"sh", "-c", "exec " + shell_quote(command) + " <&- >&- 2>&-"});
    EXPECT_EQ(program.wait(), status);
    EXPECT_TRUE(all_gone());
  }
}

TEST(LauncherEnd, PipeThatIsReadOnlyForItsFirstLineEndsTheRun) {
  const auto command = shell_quote(probe_launch(kTwoWithLongGrace, {"register", "flood"}));
  Program program({"bash", "-c", command + "| head -1; exit ${PIPESTATUS[0]}"});
  EXPECT_EQ(program.wait(), 141) << program.error_output();
  EXPECT_THAT(program.output(), EndsWith("fff\n"));
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TimeoutCommandKillsWhatDoesNotEnd) {
  std::vector<std::string> command = deaf_run();
  command.insert(command.begin(), {"timeout", "-k", "0.3", "0.7"});
  Program program(command);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

// As the first process of a container: root needs no user namespace, others need one.
std::vector<std::string> as_first_process(const std::string& replica) {
  std::vector<std::string> command = {"unshare", "--pid", "--fork", "--mount-proc"};
  if (::geteuid() != 0) command.insert(command.begin() + 1, "--map-root-user");
  command.insert(command.end(), {probe_path(), "launch", "-n", "2", "--", "sh", "-c", replica});
  return command;
}

TEST(LauncherEnd, FirstProcessOfAContainerHeedsTermThoughTheKernelWouldNot) {
  Program program(as_first_process("[ $RANK = 1 ] && kill -TERM 1; exec sleep 1000"));
  EXPECT_EQ(program.wait(), 143) << program.error_output();
  EXPECT_EQ(program.error_output(), "lockstep: ended by signal 15 (Terminated)\n");
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, FirstProcessOfAContainerLeavesNoZombies) {
  // The orphans of rank 0 have died and been reaped by the launcher before it counts.
  Program program(
      as_first_process("[ $RANK = 1 ] && exit 0; for i in 1 2 3; do (sleep 0.01 &); done; "
                       "for i in $(seq 100); do sleep 0.05; ps=$(cat /proc/[0-9]*/comm); "
                       "case $ps in *sleep*) ;; *) echo none left; exit 0;; esac; done; exit 1"));
  EXPECT_EQ(program.wait(), 0) << program.error_output();
  EXPECT_EQ(program.output(), "[rank 0] none left\n");
}

// What the process has open or mapped, one path a line.
std::string files_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::ifstream maps(folder + "/maps");
  std::string text((std::istreambuf_iterator<char>(maps)), {});
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd")) {
    std::error_code error;
    text += std::filesystem::read_symlink(entry, error).string() + "\n";
  }
  return text;
}

TEST(LauncherEnd, SharedMemoryHasNoNameThatCouldBeLeftBehind) {
  Program program(probe_launch(
      {"-n", "2"}, {"register", "0:offer=1:text", "request=1:text", "out=steady", "sleep"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  int with_control_block = 0;
  for (const pid_t pid : living_descendants()) {
    const std::string files = files_of(pid);
    EXPECT_THAT(files, Not(HasSubstr("/dev/shm/"))) << pid;
    if (files.find("memfd:lockstep-control") != std::string::npos) ++with_control_block;
  }
  EXPECT_GE(with_control_block, 3);  // the launcher, two replicas: the test sees descriptors
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("lockstep")));
  }
}

#ifndef LOCKSTEP_SANITIZED  // a sanitizer's own checks need a descriptor when none is left
TEST(LauncherEnd, StartThatFailsHalfwayLeavesNothing) {
  // A replica takes several descriptors, each in its own call: one limit for each of them to fail.
  for (int limit = 50; limit < 60; ++limit) {
    const auto command = probe_launch({"-n", "20"}, {"register", "child", "sleep"});
    Program program(
        {"sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec " + shell_quote(command)});
    EXPECT_EQ(program.wait(), 1) << limit;
    EXPECT_THAT(program.error_output(), HasSubstr("ulimit -Hn")) << limit;
    EXPECT_THAT(living_descendants(), IsEmpty()) << limit;
  }
}
#endif

TEST(LauncherEnd, FirstFailureIsLastOnTheScreen) {
  // Rank 1 fails; its peers say much about it before they end.
  const auto command =
      probe_launch({"-n", "3"}, {"register", "1:step=5", "1:microbatch=3", "wait_registered=0",
                                 "wait_registered=1", "wait_registered=2", "1:err=boom", "1:exit=7",
                                 "wait_ended=1", "letters=50", "err=rank 1 is gone", "exit=1"});
  for (const auto place : {Program::Place::kHere, Program::Place::kTerminal}) {
    Program program(command, place);
    EXPECT_EQ(program.wait(), 7);
    std::string screen = place == Program::Place::kHere ? program.error_output() : program.output();
    screen.erase(std::remove(screen.begin(), screen.end(), '\r'), screen.end());
    const size_t last_line = screen.rfind("[rank ");
    ASSERT_NE(last_line, std::string::npos);
    EXPECT_THAT(screen.substr(last_line),
                HasSubstr("lockstep: rank 1 failed first: it ended with exit status 7 in step 5, "
                          "microbatch 3\nthe last lines of rank 1 on standard error:\n  | boom\n"));
  }
}

TEST(LauncherEnd, LastLinesOfAFailureStandOnTheScreenOnce) {
  Program program(probe_launch({"-n", "2"}, {"register", "wait_registered=0", "wait_registered=1",
                                             "1:err=boom", "1:exit=7", "wait_ended=1", "exit=1"}));
  EXPECT_EQ(program.wait(), 7);
  EXPECT_EQ(program.error_output(),
            "[rank 1] boom\n"
            "lockstep: rank 1 failed first: it ended with exit status 7\n"
            "rank 0 ended as a consequence\n");
}

TEST(LauncherEnd, LastLinesOfAFailureAreRepeatedWhereLinesHaveNoRank) {
  Program program(probe_launch({"-n", "1", "--raw"}, {"err=boom", "exit=7"}));
  EXPECT_EQ(program.wait(), 7);
  EXPECT_THAT(program.error_output(), EndsWith("\n  | boom\n"));
}

TEST(LauncherEnd, FailureIsOnALineOfItsOwnThoughAReplicaHasNotEndedIts) {
  Program program(probe_launch({"-n", "1", "--raw"}, {"err_partial=50 %", "exit=3"}));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.error_output(), HasSubstr("\nlockstep: rank 0 failed first"));
}

TEST(LauncherEnd, StopAndContinueOfTheGroupChangesNothing) {
  const std::string file = temp_path("stop");
  Program program(probe_launch({"-n", "2"}, {"register", "1:pid=" + file, "out=steady", "1:sleep",
                                             "wait_ended=1", "out=done"}),
                  Program::Place::kOwnGroup);
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  pid_t victim = 0;
  std::ifstream(file) >> victim;
  ::unlink(file.c_str());
  ASSERT_GT(victim, 0);
  const auto is_stopped = [](pid_t pid) {
    const auto status = process_status(pid);
    return status && status->state == 'T';
  };
  ::kill(-program.pid(), SIGTSTP);
  EXPECT_TRUE(wait_until([&] { return is_stopped(program.pid()) && is_stopped(victim); }));
  ::kill(-program.pid(), SIGCONT);
  ::kill(victim, SIGKILL);
  EXPECT_TRUE(program.wait_for_output("done"));
  EXPECT_EQ(program.wait(), 0) << program.error_output();
}

}  // namespace
}  // namespace lockstep::launch
