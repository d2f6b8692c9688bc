#include "src/exchange/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::exchange {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    return error.what();
  }
  return "no error";
}

uint64_t bytes_taken(const Descriptor& memory) {
  struct stat status {};
  EXPECT_EQ(::fstat(memory.get(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// -- Making it ------------------------------------------------------------------------------------

TEST(SharedMemory, HasItsSizeAndNoPagesYet) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{4096}, uint64_t{12'345}, uint64_t{1} << 40}) {
    const Descriptor memory = make_shared_memory("lockstep-test", size);
    EXPECT_EQ(size_of_shared_memory(memory), size);
    EXPECT_EQ(bytes_taken(memory), 0u);
  }
}

TEST(SharedMemory, NobodyCanShrinkOrGrowItOrSealItFurther) {
  const Descriptor memory = make_shared_memory("lockstep-test", 2 * kPageBytes);
  EXPECT_EQ(::ftruncate(memory.get(), kPageBytes), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(memory.get(), 3 * kPageBytes), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(size_of_shared_memory(memory), 2 * kPageBytes);
}

TEST(SharedMemory, IsClosedOnExec) {
  const Descriptor memory = make_shared_memory("lockstep-test", 1);
  EXPECT_NE(::fcntl(memory.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemory, ASizeThatNoFileHasIsRefusedWithTheFigure) {
  EXPECT_THAT(message_of([] { make_shared_memory("gradients", uint64_t{1} << 63); }),
              AllOf(HasSubstr("gradients"), HasSubstr("9223372036854775808 bytes")));
}

// The kernel would kill us with SIGXFSZ.
TEST(SharedMemory, ASizeBeyondTheLimitOnFilesIsRefusedWithBothFigures) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1'000'000, 1'000'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    make_shared_memory("small", 1'000'000);
    const std::string message = message_of([] { make_shared_memory("gradients", 1'000'001); });
    const bool is_told = message.find("1000001 bytes") != std::string::npos &&
                         message.find("is 1000000 bytes") != std::string::npos;
    ::_exit(is_told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SharedMemory, ADescriptorOfNothingHasNoSize) {
  EXPECT_THAT(message_of([] { size_of_shared_memory(Descriptor()); }), HasSubstr("size"));
}

// -- Descriptors ----------------------------------------------------------------------------------

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(Descriptor, ClosesOnceWhereverItWasMoved) {
  Descriptor first = make_shared_memory("lockstep-test", 1);
  const int fd = first.get();
  Descriptor second(std::move(first));
  EXPECT_TRUE(is_open(fd));
  Descriptor third = make_shared_memory("lockstep-test", 1);
  const int other_fd = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(other_fd));
  EXPECT_EQ(third.get(), fd);
  third.reset();
  EXPECT_FALSE(is_open(fd));
  EXPECT_FALSE(third);
}

TEST(Descriptor, ReleasedItStaysOpen) {
  int fd = -1;
  { fd = make_shared_memory("lockstep-test", 1).release(); }
  EXPECT_TRUE(is_open(fd));
  Descriptor owner(fd);
}

// -- Mappings -------------------------------------------------------------------------------------

class MappingTest : public ::testing::Test {
 protected:
  Mapping map(Mapping::Kind kind, uint64_t offset = 0, uint64_t size = 4 * kPageBytes) {
    return Mapping(memory_, offset, size, kind);
  }

  Descriptor memory_ = make_shared_memory("lockstep-test", 4 * kPageBytes);
};

TEST_F(MappingTest, SharedWritesAreSeenByAll) {
  const Mapping one = map(Mapping::Kind::kShared), two = map(Mapping::Kind::kShared);
  one.data()[5000] = std::byte{7};
  EXPECT_EQ(two.data()[5000], std::byte{7});
  const Mapping second_page = map(Mapping::Kind::kShared, kPageBytes, kPageBytes);
  EXPECT_EQ(second_page.data()[5000 - kPageBytes], std::byte{7});
}

TEST_F(MappingTest, APrivateOneSeesTheOthersUntilItWritesAndAgainWhenItsWritesAreDiscarded) {
  const Mapping shared = map(Mapping::Kind::kShared), own = map(Mapping::Kind::kPrivate);
  shared.data()[1] = std::byte{1};
  EXPECT_EQ(own.data()[1], std::byte{1});
  own.data()[0] = std::byte{9};
  own.data()[kPageBytes] = std::byte{9};
  EXPECT_EQ(shared.data()[0], std::byte{0});
  shared.data()[1] = std::byte{2};
  EXPECT_EQ(own.data()[1], std::byte{1});  // the page is its own now
  own.discard_writes(1, 1);
  EXPECT_EQ(own.data()[0], std::byte{0});
  EXPECT_EQ(own.data()[1], std::byte{2});
  EXPECT_EQ(own.data()[kPageBytes], std::byte{9});  // another page
}

TEST_F(MappingTest, PopulatingTakesThePagesOfTheRangeAndNoOthers) {
  const Mapping mapping = map(Mapping::Kind::kShared);
  mapping.populate(0, 0);
  EXPECT_EQ(bytes_taken(memory_), 0u);
  mapping.populate(kPageBytes + 10, kPageBytes);  // touches two pages
  if (bytes_taken(memory_) == 0) {
    EXPECT_EQ(::madvise(mapping.data(), kPageBytes, 23), -1);  // a kernel without it
    return;
  }
  EXPECT_EQ(bytes_taken(memory_), 2 * kPageBytes);
  EXPECT_EQ(mapping.data()[kPageBytes], std::byte{0});
}

TEST_F(MappingTest, ARangeBeyondItsEndIsABug) {
  const Mapping mapping = map(Mapping::Kind::kShared);
  EXPECT_DEATH(mapping.populate(kPageBytes, 4 * kPageBytes), "against 16384");
  EXPECT_DEATH(mapping.discard_writes(4 * kPageBytes, 1), "against 16384");
}

TEST_F(MappingTest, OneThatDoesNotFitIsRefusedWithTheFigure) {
  EXPECT_THAT(message_of([&] { map(Mapping::Kind::kShared, 0, uint64_t{1} << 60); }),
              HasSubstr("1152921504606846976 bytes"));
}

TEST_F(MappingTest, OutlivesTheDescriptorAndMoves) {
  Mapping first = map(Mapping::Kind::kShared);
  first.data()[3] = std::byte{3};
  memory_.reset();
  std::byte* const data = first.data();
  Mapping second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);
  Mapping third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size_bytes(), 4 * kPageBytes);
  EXPECT_EQ(third.data()[3], std::byte{3});
}

TEST(Pages, SizesAreRoundedUp) {
  EXPECT_EQ(round_to_pages(0), 0u);
  EXPECT_EQ(round_to_pages(1), kPageBytes);
  EXPECT_EQ(round_to_pages(kPageBytes), kPageBytes);
  EXPECT_EQ(round_to_pages(kPageBytes + 1), 2 * kPageBytes);
}

}  // namespace
}  // namespace lockstep::exchange
