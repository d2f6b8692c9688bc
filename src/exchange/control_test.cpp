#include "src/exchange/control.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "src/exchange/shared_memory.h"

namespace lockstep::exchange {
namespace {

// -- How a death counts ---------------------------------------------------------------------------

int exited_with(int code) { return code << 8; }
int killed_by(int signal) { return signal; }

TEST(WorkFault, StatusesAreBuiltAsTheKernelDoes) {
  ASSERT_EQ(WEXITSTATUS(exited_with(3)), 3);
  ASSERT_TRUE(WIFSIGNALED(killed_by(SIGSEGV)));
}

TEST(WorkFault, AnExitCountsIfItsStatusIsNotZero) {
  EXPECT_FALSE(is_work_fault(exited_with(0)));
  for (int code : {1, 2, 77, 255}) EXPECT_TRUE(is_work_fault(exited_with(code))) << code;
}

TEST(WorkFault, ASignalCountsIfTheWorkItselfCanCauseIt) {
  constexpr int kCore = 0x80;  // the kernel's note that it wrote a core file
  for (int signal : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) {
    EXPECT_TRUE(is_work_fault(killed_by(signal))) << signal;
    EXPECT_TRUE(is_work_fault(killed_by(signal) | kCore)) << signal;
  }
  // Somebody else's doing: drills, the memory killer, a user, a scheduler.
  for (int signal : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGPIPE}) {
    EXPECT_FALSE(is_work_fault(killed_by(signal))) << signal;
  }
}

TEST(WorkFault, AStopIsNoDeath) {
  EXPECT_FALSE(is_work_fault(SIGSTOP << 8 | 0x7f));
  EXPECT_FALSE(is_work_fault(0xffff));  // continued
}

// -- The ring of reports --------------------------------------------------------------------------

class ReportRingTest : public ::testing::Test {
 protected:
  bool push(uint64_t step, uint32_t rank = 0) {
    StepReport report{};
    report.step = step;
    report.loss = static_cast<double>(step) / 2;
    report.is_last = static_cast<uint32_t>(step);
    return push_report(control(), rank, report);
  }

  // 0: there is none.
  uint64_t pop(uint32_t rank = 0) {
    StepReport report{};
    if (!pop_report(control(), rank, report)) return 0;
    EXPECT_EQ(report.loss, static_cast<double>(report.step) / 2);
    EXPECT_EQ(report.is_last, static_cast<uint32_t>(report.step));
    return report.step;
  }

  ControlBlock& control() { return *reinterpret_cast<ControlBlock*>(mapping_.data()); }

  Descriptor memory_ = make_shared_memory("lockstep-test", sizeof(ControlBlock));
  Mapping mapping_{memory_, 0, sizeof(ControlBlock), Mapping::Kind::kShared};
};

TEST_F(ReportRingTest, HasNothingAtFirst) { EXPECT_EQ(pop(), 0u); }

TEST_F(ReportRingTest, ReportsComeInTheirOrderAcrossManyTurnsOfTheRing) {
  uint64_t written = 0, read = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    for (uint32_t i = 0; i < 100 + round; ++i) ASSERT_TRUE(push(++written));
    for (uint32_t i = 0; i < 100 + round; ++i) ASSERT_EQ(pop(), ++read);
    ASSERT_EQ(pop(), 0u);
  }
  EXPECT_GT(written, 4 * ReportRing::kCapacity);
}

TEST_F(ReportRingTest, AFullRingRefusesAndLosesNothing) {
  for (uint64_t step = 1; step <= ReportRing::kCapacity; ++step) ASSERT_TRUE(push(step));
  EXPECT_FALSE(push(999'999));
  EXPECT_EQ(pop(), 1u);
  EXPECT_TRUE(push(ReportRing::kCapacity + 1));
  EXPECT_FALSE(push(999'999));
  for (uint64_t step = 2; step <= ReportRing::kCapacity + 1; ++step) ASSERT_EQ(pop(), step);
  EXPECT_EQ(pop(), 0u);
}

TEST_F(ReportRingTest, EachRankHasItsOwn) {
  ASSERT_TRUE(push(1, 0));
  ASSERT_TRUE(push(2, kMaxReplicas - 1));
  EXPECT_EQ(pop(1), 0u);
  EXPECT_EQ(pop(kMaxReplicas - 1), 2u);
  EXPECT_EQ(pop(0), 1u);
}

// Its bytes are there, but `written` does not say so: nothing was reported, and the successor in
// the seat writes over it.
TEST_F(ReportRingTest, AWriterThatDiesOverAReportHasNotReported) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool pushed = push(1);
    control().rings[0].reports[1].step = 666;
    ::kill(::getpid(), pushed ? SIGKILL : SIGABRT);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(pop(), 1u);
  EXPECT_EQ(pop(), 0u);
  ASSERT_TRUE(push(2));
  EXPECT_EQ(pop(), 2u);
}

TEST_F(ReportRingTest, AReaderMeetsAWriterOfAnotherProcess) {
  constexpr uint64_t kCount = 5'000;
  const pid_t child = ::fork();
  if (child == 0) {
    for (uint64_t step = 1; step <= kCount;) {
      if (push(step))
        ++step;
      else
        std::this_thread::yield();
    }
    ::_exit(0);
  }
  uint64_t expected = 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (expected <= kCount && std::chrono::steady_clock::now() < end) {
    const uint64_t step = pop();
    if (step == 0) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(step, expected);
    ++expected;
  }
  EXPECT_EQ(expected, kCount + 1);
  if (expected <= kCount) ::kill(child, SIGKILL);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::exchange
