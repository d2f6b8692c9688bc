#include "src/launch/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/launch_test_support.h"

namespace lockstep::launch {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;

bool is_readable(const exchange::Descriptor& fd) {
  pollfd ready{fd.get(), POLLIN, 0};
  return ::poll(&ready, 1, 20'000) == 1;
}

TEST(Process, StatusOfAChildIsTakenOnce) {
  const pid_t pid = fork_child([] { ::_exit(7); });
  const auto pidfd = open_pidfd(pid);
  ASSERT_TRUE(is_readable(pidfd));
  EXPECT_EQ(take_wait_status(pidfd, pid), 7 << 8);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), -1);  // reaped
}

TEST(Process, StatusOfAGrandchildIsKnownWhileItsParentHasNotLooked) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t parent = fork_child([&] {
    const pid_t grandchild = fork_child(sleep_for_ever);
    if (::write(pipe[1], &grandchild, sizeof grandchild) < 0) ::_exit(1);
    sleep_for_ever();
  });
  pid_t grandchild = 0;
  ::close(pipe[1]);
  ASSERT_EQ(::read(pipe[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  EXPECT_TRUE(is_descendant(grandchild, ::getpid()));
  EXPECT_FALSE(is_descendant(::getpid(), grandchild));
  const auto pidfd = open_pidfd(grandchild);
  send_signal(pidfd, SIGTERM);
  ASSERT_TRUE(is_readable(pidfd));
  EXPECT_EQ(take_wait_status(pidfd, grandchild), SIGTERM);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  ::close(pipe[0]);
}

TEST(Process, NoSuchProcessHasNoStatus) {
  const pid_t pid = fork_child([] {});
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(process_status(pid), std::nullopt);
  EXPECT_FALSE(is_descendant(pid, ::getpid()));
  EXPECT_FALSE(static_cast<bool>(open_pidfd(pid)));
}

TEST(Process, DescendantsLeaveOutWhatIsExcepted) {
  const pid_t one = fork_child(sleep_for_ever);
  const pid_t other = fork_child(sleep_for_ever);
  EXPECT_THAT(descendants(::getpid(), {}), Contains(one));
  EXPECT_THAT(descendants(::getpid(), {one}), Not(Contains(one)));
  EXPECT_THAT(end_descendants({one}), IsEmpty());
  EXPECT_EQ(::waitpid(one, nullptr, WNOHANG), 0);  // lives
  EXPECT_THAT(end_descendants({}), IsEmpty());
  EXPECT_THAT(descendants(::getpid(), {}), IsEmpty());
  EXPECT_EQ(::waitpid(other, nullptr, WNOHANG), -1);
}

TEST(Process, NamesWithParenthesesAndSpacesAreRead) {
  const pid_t pid = fork_child([] {
    ::prctl(PR_SET_NAME, ") Z 1 (");
    sleep_for_ever();
  });
  EXPECT_TRUE(wait_until([&] {
    std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
    std::string name;
    std::getline(file, name);
    return name == ") Z 1 (";
  }));
  const auto status = process_status(pid);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->parent, ::getpid());
  EXPECT_NE(status->state, 'Z');
  end_descendants({});
}

}  // namespace
}  // namespace lockstep::launch
