#include "src/exchange/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::exchange {
namespace {

size_t open_descriptor_count() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    here_ = Descriptor(ends[0]);
    there_ = Descriptor(ends[1]);
  }

  std::optional<ReceivedMessage> receive(bool* closed = nullptr) {
    return receive_message(there_.get(), 0, closed);
  }

  Descriptor here_, there_;
};

TEST_F(ChannelTest, AMessageArrivesAsItWasSent) {
  ASSERT_TRUE(send_message(here_.get(), {MessageType::kKill, 7, uint64_t{1} << 40}));
  const auto received = receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->message.type, MessageType::kKill);
  EXPECT_EQ(received->message.index, 7u);
  EXPECT_EQ(received->message.value, uint64_t{1} << 40);
  EXPECT_FALSE(received->descriptor);
}

TEST_F(ChannelTest, MessagesKeepTheirOrderAndTheirBounds) {
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(send_message(here_.get(), {MessageType::kKill, i, 0}));
  }
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(receive()->message.index, i);
  EXPECT_FALSE(receive());
}

TEST_F(ChannelTest, ADescriptorReachesAnotherProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Descriptor memory = make_shared_memory("lockstep-test", kPageBytes);
    const Mapping mapping(memory, 0, kPageBytes, Mapping::Kind::kShared);
    mapping.data()[17] = std::byte{42};
    const Message offer{MessageType::kOfferArena, 3, kPageBytes};
    ::_exit(send_message(there_.get(), offer, memory.get()) ? 0 : 1);
  }
  const auto received = receive_message(here_.get(), 10'000);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(received && received->descriptor);
  EXPECT_EQ(size_of_shared_memory(received->descriptor), kPageBytes);
  const Mapping mapping(received->descriptor, 0, kPageBytes, Mapping::Kind::kShared);
  EXPECT_EQ(mapping.data()[17], std::byte{42});  // its maker is gone by now
}

// A program that a replica starts must not keep the arena alive.
TEST_F(ChannelTest, AReceivedDescriptorIsClosedOnExec) {
  const Descriptor memory = make_shared_memory("lockstep-test", 1);
  ASSERT_TRUE(send_message(here_.get(), {MessageType::kArena, 0, 1}, memory.get()));
  const auto received = receive();
  ASSERT_TRUE(received && received->descriptor);
  EXPECT_NE(::fcntl(received->descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(ChannelTest, WhereNothingCameItIsNotClosed) {
  bool closed = false;
  EXPECT_FALSE(receive(&closed));
  EXPECT_FALSE(closed);
}

TEST_F(ChannelTest, ReceivingEndsAtItsTimeLimit) {
  const auto start = std::chrono::steady_clock::now();
  bool closed = false;
  EXPECT_FALSE(receive_message(there_.get(), 100, &closed));
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, std::chrono::milliseconds(90));
  EXPECT_FALSE(closed);
}

TEST_F(ChannelTest, WhatWasSentBeforeTheSenderDiedStillArrives) {
  ASSERT_TRUE(send_message(here_.get(), {MessageType::kRegister, 0, 99}));
  here_.reset();
  bool closed = false;
  const auto received = receive(&closed);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->message.value, 99u);
  EXPECT_FALSE(closed);
  EXPECT_FALSE(receive(&closed));
  EXPECT_TRUE(closed);
}

TEST_F(ChannelTest, SendingToOneThatIsGoneFailsWithoutASignal) {
  there_.reset();
  EXPECT_FALSE(send_message(here_.get(), {MessageType::kRegister, 0, 1}));
}

TEST_F(ChannelTest, ADescriptorThatNobodyReceivesIsNotLost) {
  const size_t before = open_descriptor_count();
  {
    const Descriptor memory = make_shared_memory("lockstep-test", 1);
    ASSERT_TRUE(send_message(here_.get(), {MessageType::kArena, 0, 1}, memory.get()));
    EXPECT_TRUE(receive()->descriptor);  // dropped at once
  }
  EXPECT_EQ(open_descriptor_count(), before);
}

class WrongSize : public ChannelTest, public ::testing::WithParamInterface<int> {};

TEST_P(WrongSize, IsDroppedWithItsDescriptorAndTheNextMessageArrives) {
  const Descriptor memory = make_shared_memory("lockstep-test", 1);
  const size_t before = open_descriptor_count();
  std::vector<char> bytes(sizeof(Message) + static_cast<size_t>(GetParam()), 'x');
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = ancillary;
  header.msg_controllen = sizeof ancillary;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = memory.get();
  std::copy_n(reinterpret_cast<const char*>(&descriptor), sizeof descriptor,
              reinterpret_cast<char*>(CMSG_DATA(rights)));
  ASSERT_EQ(::sendmsg(here_.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
  ASSERT_TRUE(send_message(here_.get(), {MessageType::kKill, 5, 0}));

  bool closed = false;
  EXPECT_FALSE(receive(&closed));
  EXPECT_FALSE(closed);
  EXPECT_EQ(open_descriptor_count(), before);
  const auto next = receive();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->message.index, 5u);
}

INSTANTIATE_TEST_SUITE_P(AMessageOf, WrongSize, ::testing::Values(-1, 1, 100),
                         [](const ::testing::TestParamInfo<int>& difference) {
                           return difference.param < 0 ? std::string("OneByteLess")
                                                       : std::to_string(difference.param) + "More";
                         });

// Replicas that a wrapper script starts share its socket.
TEST_F(ChannelTest, OneThatAnotherReaderWasFasterForIsNotStuck) {
  ASSERT_TRUE(send_message(here_.get(), {MessageType::kAccepted, 1, 0}));
  const Descriptor second_reader(::dup(there_.get()));
  EXPECT_TRUE(receive_message(second_reader.get(), 0));
  EXPECT_FALSE(receive_message(there_.get(), 0));
}

}  // namespace
}  // namespace lockstep::exchange
