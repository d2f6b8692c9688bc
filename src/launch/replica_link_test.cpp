#include "src/launch/replica_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/launch/group_control.h"

// A replica's side alone: the test holds the launcher's ends. With a launcher: launcher_test.cpp.

namespace lockstep::launch {
namespace {

using exchange::Descriptor;
using exchange::MessageType;
using std::chrono::milliseconds;
using testing::HasSubstr;

class ReplicaLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    launcher_ = Descriptor(ends[0]);
    environment_.socket_fd = ends[1];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    environment_.lifeline_fd = ends[0];
    lifeline_ = Descriptor(ends[1]);
    control_.take_seat(1, 7);
    environment_.control_fd = ::fcntl(control_.fd(), F_DUPFD_CLOEXEC, 3);
    environment_.rank = 1;
    environment_.incarnation = 7;
  }

  // The answer waits in the socket before the question is asked.
  void answer(MessageType type, uint32_t index, uint64_t value, int descriptor = -1) const {
    ASSERT_TRUE(exchange::send_message(launcher_.get(), {type, index, value}, descriptor));
  }

  void link(milliseconds deadline = std::chrono::seconds(20)) {
    link_.emplace(environment_, deadline);
  }

  void expect_error(ErrorCode code, const std::string& part,
                    milliseconds deadline = std::chrono::seconds(20)) {
    try {
      link(deadline);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  static LaunchOptions two_replicas() {
    LaunchOptions options;
    options.replica_count = 2;
    return options;
  }

  GroupControl control_{two_replicas()};
  WorkerEnvironment environment_;
  Descriptor launcher_;
  Descriptor lifeline_;              // the write end
  std::optional<ReplicaLink> link_;  // first to go: its lifeline's write end is still open then
};

TEST_F(ReplicaLinkTest, RegistersItsProcess) {
  answer(MessageType::kAccepted, 0, 1);
  link();
  const auto received = exchange::receive_message(launcher_.get(), 0);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->message.type, MessageType::kRegister);
  EXPECT_EQ(received->message.value, static_cast<uint64_t>(::getpid()));
  EXPECT_EQ(control_.entry(7).pid, ::getpid());
  EXPECT_EQ(control_.entry(7).state, static_cast<uint32_t>(exchange::ProcessState::kRegistered));
}

TEST_F(ReplicaLinkTest, NoAnswerWithinTheDeadlineIsAnError) {
  expect_error(ErrorCode::kPeer, "did not answer the registration within 150 ms",
               milliseconds(150));
}

TEST_F(ReplicaLinkTest, LauncherThatIsGoneIsAnError) {
  launcher_.reset();
  expect_error(ErrorCode::kPeer, "rank 1: the launcher is gone");
}

TEST_F(ReplicaLinkTest, RefusalIsAnError) {
  answer(MessageType::kRefused, 0, 0);
  expect_error(ErrorCode::kPeer, "the launcher refused process");
}

TEST_F(ReplicaLinkTest, DeathThatTheLauncherHasPublishedIsNotUndone) {
  control_.publish_death(1, 7, SIGKILL);
  answer(MessageType::kAccepted, 0, 1);
  expect_error(ErrorCode::kPeer, "the launcher refused process");
  EXPECT_EQ(control_.entry(7).state, static_cast<uint32_t>(exchange::ProcessState::kEnded));
}

TEST_F(ReplicaLinkTest, ControlBlockOfAnotherVersionIsAnError) {
  control_.block().version = exchange::kControlVersion + 1;
  expect_error(ErrorCode::kEnvironment, "built with another version of lockstep");
}

TEST_F(ReplicaLinkTest, SeatOfAnotherIsAnError) {
  control_.take_seat(1, 8);
  expect_error(ErrorCode::kEnvironment, "LOCKSTEP_RANK=1 and LOCKSTEP_INCARNATION=7");
  environment_.rank = 2;
  environment_.control_fd = ::fcntl(control_.fd(), F_DUPFD_CLOEXEC, 3);
  environment_.socket_fd = environment_.lifeline_fd = -1;  // closed by the first try
  expect_error(ErrorCode::kEnvironment, "LOCKSTEP_RANK=2");
}

TEST_F(ReplicaLinkTest, AnswerToARequestThatWasGivenUpIsDropped) {
  answer(MessageType::kAccepted, 0, 1);
  link();
  EXPECT_FALSE(link_->request_arena(3, milliseconds(50)).has_value());
  const Descriptor memory = exchange::make_shared_memory("test", 4096);
  answer(MessageType::kArena, 3, 1000, memory.get());
  answer(MessageType::kArena, 4, 2000, memory.get());
  const auto arena = link_->request_arena(4, std::chrono::seconds(20));
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(arena->size_bytes, 2000u);
  EXPECT_TRUE(static_cast<bool>(arena->memory));
}

TEST_F(ReplicaLinkTest, ProcessIsKilledWhenItsLifelineBreaks) {
  answer(MessageType::kAccepted, 0, 1);
  const auto break_it = [&] {
    link();
    lifeline_.reset();
    ::poll(nullptr, 0, 20'000);
    ::_exit(0);
  };
  EXPECT_EXIT(break_it(), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(ReplicaLinkTest, ProcessWhoseLifelineIsBrokenAlreadyExits) {
  const auto start = [&] {
    lifeline_.reset();
    link();
    ::_exit(0);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(129), "");
}

}  // namespace
}  // namespace lockstep::launch
