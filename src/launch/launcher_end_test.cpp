#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "src/launch/launch_test_support.h"

// However a run ends, nothing of it is left within two seconds.

namespace lockstep::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kSoon = 2.0;

bool all_gone() {
  return wait_until([] { return living_descendants().empty(); }, kSoon);
}

// Two replicas that run until they are ended, with a helper each that hides in a session of its own.
std::vector<std::string> steady_run(const std::vector<std::string>& options = {"-n", "2"}) {
  return probe_launch(options, {"register", "child", "out=steady", "sleep"});
}

TEST(LauncherEnd, HardKillOfTheLauncherLeavesNothing) {
  Program program(steady_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  EXPECT_GE(living_descendants().size(), 5u);  // the test sees what it is to see gone
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
    ::usleep(static_cast<useconds_t>(microseconds));  // not to wait for anything: to try many moments
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.wait(), 137);
    ASSERT_TRUE(all_gone()) << "after " << microseconds << " us";
  }
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
  EXPECT_EQ(program.wait(kSoon), 143);
  EXPECT_THAT(program.error_output(), HasSubstr("ended by signal 15 (Terminated)"));
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, ReplicaThatIgnoresTermIsKilledAfterTheGrace) {
  Program program(probe_launch({"-n", "2", "--grace", "300"},
                               {"ignore_term", "register", "out=steady", "sleep"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  const auto begin = std::chrono::steady_clock::now();
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(290));
  EXPECT_THAT(living_descendants(), IsEmpty());
}

TEST(LauncherEnd, SecondTermDoesNotWaitForTheGrace) {
  Program program(probe_launch({"-n", "2", "--grace", "100000"},
                               {"ignore_term", "register", "out=steady", "sleep"}));
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(0.3), 200);  // still waiting
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143);
}

TEST(LauncherEnd, HangUpEndsWith129) {
  Program program(steady_run());
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait(kSoon), 129);
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
  EXPECT_EQ(program.wait(kSoon), 143);
}

TEST(LauncherEnd, TermToTheProcessGroupEndsInOrder) {
  for (int round = 0; round < 20; ++round) {
    Program program(steady_run(), Program::Group::kOwn);
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    ::kill(-program.pid(), SIGTERM);
    ASSERT_EQ(program.wait(kSoon), 143) << program.error_output();
    ASSERT_THAT(program.error_output(), HasSubstr("ended by signal 15"));
    ASSERT_THAT(program.error_output(), Not(HasSubstr("the others go on")));
    EXPECT_THAT(living_descendants(), IsEmpty());
  }
}

TEST(LauncherEnd, KillOfTheProcessGroupLeavesNothing) {
  Program program(steady_run(), Program::Group::kOwn);
  ASSERT_TRUE(program.wait_for_output("steady", 2));
  ::kill(-program.pid(), SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TimeoutCommandEndsIt) {
  std::vector<std::string> command = steady_run();
  command.insert(command.begin(), {"timeout", "1"});
  Program program(command);
  EXPECT_EQ(program.wait(20), 124);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, TimeoutCommandWithKillLeavesNothing) {
  std::vector<std::string> command = steady_run();
  command.insert(command.begin(), {"timeout", "-s", "KILL", "1"});
  Program program(command);
  EXPECT_EQ(program.wait(20), 137);
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, SetsidAndNoJobControlMakeNoDifference) {
  for (const char* wrapper : {"setsid -w", "exec"}) {
    Program program({"sh", "-c", wrapper + (" " + shell_quote(steady_run()))});
    ASSERT_TRUE(program.wait_for_output("steady", 2));
    for (const pid_t pid : living_descendants()) {
      const auto status = process_status(pid);
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      const std::string line((std::istreambuf_iterator<char>(file)), {});
      // The launcher: its parent is this process or the setsid that waits for it.
      const bool is_launcher = line.starts_with(probe_path() + std::string(1, '\0') + "launch") &&
                               (status->parent == ::getpid() || status->parent == program.pid());
      if (is_launcher) ::kill(pid, SIGTERM);
    }
    EXPECT_EQ(program.wait(20), 143) << wrapper;
    EXPECT_TRUE(all_gone());
  }
}

// Runs the command in the foreground of a terminal of its own; the master's end is returned.
std::pair<pid_t, int> run_on_terminal(const std::vector<std::string>& command) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return {-1, -1};
  const std::string name = ::ptsname(master);
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setsid();
    const int terminal = ::open(name.c_str(), O_RDWR);
    ::ioctl(terminal, TIOCSCTTY, 0);
    for (int fd = 0; fd <= 2; ++fd) ::dup2(terminal, fd);
    ::execvp(arguments[0], arguments.data());
    ::_exit(120);
  }
  return {pid, master};
}

bool terminal_shows(int master, std::string& seen, const std::string& text, size_t count) {
  return wait_until(
      [&] {
        pollfd ready{master, POLLIN, 0};
        char bytes[4096];
        if (::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0) {
          const ssize_t size = ::read(master, bytes, sizeof bytes);
          if (size > 0) seen.append(bytes, static_cast<size_t>(size));
        }
        size_t found = 0;
        for (size_t at = seen.find(text); at != std::string::npos; at = seen.find(text, at + 1)) {
          ++found;
        }
        return found >= count;
      },
      20);
}

TEST(LauncherEnd, ControlCOnATerminalEndsEverythingWith130) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto [pid, master] = run_on_terminal(
      probe_launch({"-n", "3"}, {"ignore_term", "register", "child", "out=steady", "sleep"}));
  ASSERT_GT(pid, 0);
  std::string seen;
  ASSERT_TRUE(terminal_shows(master, seen, "steady", 3)) << seen;
  ASSERT_EQ(::write(master, "\x03", 1), 1);
  int status = 0;
  ASSERT_TRUE(wait_until([&, child = pid] { return ::waitpid(child, &status, WNOHANG) == child; },
                         kSoon));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_TRUE(all_gone());
  terminal_shows(master, seen, "interrupted", 1);
  EXPECT_THAT(seen, HasSubstr("interrupted"));
  EXPECT_THAT(seen, Not(HasSubstr("the others go on")));
  ::close(master);
}

TEST(LauncherEnd, TerminalThatGoesAwayLeavesNothing) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto [pid, master] = run_on_terminal(steady_run());
  ASSERT_GT(pid, 0);
  std::string seen;
  ASSERT_TRUE(terminal_shows(master, seen, "steady", 2)) << seen;
  ::close(master);
  int status = 0;
  ASSERT_TRUE(wait_until([&, child = pid] { return ::waitpid(child, &status, WNOHANG) == child; },
                         kSoon));
  EXPECT_TRUE(all_gone());
}

TEST(LauncherEnd, StopAndContinueOfTheGroupChangesNothing) {
  const std::string file = testing::TempDir() + "launch_stop_" + std::to_string(::getpid());
  ::unlink(file.c_str());
  Program program(probe_launch({"-n", "2"}, {"register", "1:pid=" + file, "out=steady", "1:sleep",
                                             "wait_ended=1", "out=done"}),
                  Program::Group::kOwn);
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
  EXPECT_TRUE(wait_until([&] { return is_stopped(program.pid()) && is_stopped(victim); }, 20));
  ::kill(-program.pid(), SIGCONT);
  ::kill(victim, SIGKILL);
  EXPECT_TRUE(program.wait_for_output("done"));
  EXPECT_EQ(program.wait(), 0) << program.error_output();
}

}  // namespace
}  // namespace lockstep::launch
