#include "src/launch/sweeper.h"

#include <gtest/gtest.h>

#include "src/launch/launch_test_support.h"

namespace lockstep::launch {
namespace {

pid_t start_marked(const std::string& value) {
  return fork_child([&] {
    // The mark stands far behind, across the pieces in which the sweeper reads.
    const std::string filler = "FILLER=" + std::string(8150, 'x');
    const std::string variable = "LOCKSTEP_RUN=" + value;
    const char* environment[] = {filler.c_str(), variable.c_str(), nullptr};
    ::execle("/bin/sleep", "sleep", "1000", nullptr, environment);
    ::_exit(1);
  });
}

TEST(Sweeper, DoesNothingWhenTheRunEndsInOrder) {
  const std::string token = make_run_token();
  const pid_t marked = start_marked(token);
  { const Sweeper sweeper(token); }
  EXPECT_EQ(::waitpid(marked, nullptr, WNOHANG), 0);
  end_descendants({});
}

TEST(Sweeper, EndsMarkedProcessesOnlyWhenTheLauncherIsKilled) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string token = make_run_token();
  const pid_t marked = start_marked("outer:" + token);
  const pid_t unmarked = start_marked(make_run_token());
  const pid_t launcher = fork_child([&] {
    const Sweeper sweeper(token);
    sleep_for_ever();
  });
  ASSERT_TRUE(wait_until([] { return living_descendants().size() == 4; }));
  ::kill(launcher, SIGKILL);
  int status = 0;
  EXPECT_TRUE(wait_until([&] { return ::waitpid(marked, &status, WNOHANG) == marked; }));
  EXPECT_EQ(status, SIGKILL);
  // The sweeper ends as well; the unmarked process does not.
  EXPECT_TRUE(wait_until([] { return living_descendants().size() == 1; }));
  EXPECT_EQ(::waitpid(unmarked, nullptr, WNOHANG), 0);
  end_descendants({});
}

}  // namespace
}  // namespace lockstep::launch
