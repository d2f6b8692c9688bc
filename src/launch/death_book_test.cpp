#include "src/launch/death_book.h"

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int exit_status(int code) { return code << 8; }

Ending ending(uint32_t rank, int wait_status, double seconds) {
  Ending result;
  result.rank = rank;
  result.incarnation = rank + 1;
  result.wait_status = wait_status;
  result.is_registered = true;
  result.seconds = seconds;
  return result;
}

TEST(DeathBook, SuccessesMakeZero) {
  DeathBook book;
  EXPECT_EQ(book.add(ending(0, 0, 1)), nullptr);
  EXPECT_EQ(book.exit_status(), 0);
}

TEST(DeathBook, ADrillIsNoConsequenceOfAnotherSoonBefore) {
  DeathBook book;
  Ending drill = ending(1, SIGKILL, 1);
  drill.cause = DeathCause::kDrill;
  EXPECT_FALSE(book.add(drill)->is_consequence);
  drill.rank = 2;
  drill.seconds = 1.1;
  EXPECT_FALSE(book.add(drill)->is_consequence);
  EXPECT_TRUE(book.add(ending(3, SIGKILL, 1.2))->is_consequence);
}

TEST(DeathBook, NoSuccessIsNotZero) { EXPECT_NE(DeathBook().exit_status(), 0); }

TEST(DeathBook, KillCountsUnlessAReplicaThatHadJoinedFinishesAfterIt) {
  DeathBook before;
  before.add(ending(0, 0, 1));
  before.add(ending(1, SIGKILL, 2));
  EXPECT_EQ(before.exit_status(), 137);

  DeathBook after;
  after.add(ending(1, SIGKILL, 1));
  EXPECT_EQ(after.exit_status(), 137);
  Ending stranger = ending(2, 0, 2);
  stranger.is_registered = false;
  after.add(stranger);
  EXPECT_EQ(after.exit_status(), 137);
  after.add(ending(0, 0, 3));
  EXPECT_EQ(after.exit_status(), 0);
}

TEST(DeathBook, FaultCountsThoughOthersFinish) {
  DeathBook book;
  book.add(ending(1, SIGSEGV, 1));
  book.add(ending(0, 0, 5));
  EXPECT_EQ(book.exit_status(), 139);
}

TEST(DeathBook, FaultAfterAKillGivesItsOwnStatusWhereOthersFinish) {
  DeathBook book;
  book.add(ending(1, SIGKILL, 1));
  book.add(ending(2, exit_status(3), 1.5));
  book.add(ending(0, 0, 9));
  EXPECT_EQ(book.exit_status(), 3);
}

TEST(DeathBook, AllDeadGivesTheFirstOnesStatus) {
  DeathBook book;
  book.add(ending(1, SIGKILL, 1));
  book.add(ending(2, exit_status(1), 1.5));
  book.add(ending(0, exit_status(1), 1.6));
  EXPECT_EQ(book.exit_status(), 137);
}

TEST(DeathBook, LauncherStatusWinsOverAll) {
  DeathBook book;
  book.end_run(143, "ended by signal 15 (Terminated)");
  book.end_run(1, "later");
  const Death* death = book.add(ending(0, SIGTERM, 1));
  ASSERT_NE(death, nullptr);
  EXPECT_TRUE(death->is_consequence);
  EXPECT_EQ(book.exit_status(), 143);
  EXPECT_EQ(failure_report(book.result(1)), "ended by signal 15 (Terminated)");
}

TEST(DeathBook, ErrorsWithinASecondAreConsequencesFaultSignalsAreNot) {
  DeathBook book;
  EXPECT_FALSE(book.add(ending(2, exit_status(4), 10.0))->is_consequence);
  EXPECT_TRUE(book.add(ending(0, exit_status(1), 10.9))->is_consequence);
  EXPECT_TRUE(book.add(ending(3, SIGABRT, 10.9))->is_consequence);
  EXPECT_FALSE(book.add(ending(1, SIGSEGV, 10.9))->is_consequence);
  EXPECT_FALSE(book.add(ending(4, exit_status(1), 12.5))->is_consequence);
}

TEST(FailureReport, IsEmptyForSuccess) {
  DeathBook book;
  book.add(ending(1, SIGKILL, 1));
  book.add(ending(0, 0, 2));
  EXPECT_EQ(failure_report(book.result(2)), "");
}

TEST(FailureReport, NamesTheCauseWithItsPlaceAndLastLinesAndCountsTheRest) {
  DeathBook book;
  Ending cause = ending(2, SIGABRT, 10);
  cause.step = 5;
  cause.microbatch = 3;
  cause.last_stderr_lines = {"terminate called", "  what():  boom-2"};
  book.add(cause);
  Ending peer = ending(3, exit_status(1), 10.5);
  peer.last_stderr_lines = {"peer gone"};
  book.add(peer);
  book.add(ending(1, SIGSEGV, 10.6));
  book.add(ending(0, exit_status(1), 10.7));
  EXPECT_EQ(failure_report(book.result(11)),
            "rank 2 failed first: it was killed by signal 6 (Aborted) in step 5, microbatch 3\n"
            "the last lines of rank 2 on standard error:\n"
            "  | terminate called\n"
            "  |   what():  boom-2\n"
            "rank 1 failed as well: it was killed by signal 11 (Segmentation fault)\n"
            "ranks 0, 3 ended as a consequence");
}

TEST(FailureReport, TheSameErrorOnAllIsNoConsequenceOfTheFirst) {
  DeathBook book;
  for (const uint32_t rank : {2u, 0u, 1u}) {
    Ending one = ending(rank, exit_status(1), 10 + 0.01 * rank);
    one.last_stderr_lines = {"lockstep: rank " + std::to_string(rank) + ": step 5: not finite"};
    book.add(one);
  }
  EXPECT_EQ(failure_report(book.result(11)),
            "rank 2 failed first: it ended with exit status 1\n"
            "the last lines of rank 2 on standard error:\n"
            "  | lockstep: rank 2: step 5: not finite\n"
            "ranks 0, 1 ended in the same way");
}

TEST(FailureReport, LinesThatAreStillOnTheScreenAreNotRepeated) {
  DeathBook book;
  Ending one = ending(0, exit_status(1), 1);
  one.last_stderr_lines = {"boom"};
  book.add(one);
  LaunchResult result = book.result(1);
  result.deaths[0].lines_are_on_screen = true;
  EXPECT_EQ(failure_report(result), "rank 0 failed first: it ended with exit status 1");
}

TEST(FailureReport, TellsWhatFollowedAKill) {
  DeathBook book;
  book.add(ending(1, SIGKILL, 1));
  Ending peer = ending(0, exit_status(1), 1.5);
  peer.last_stderr_lines = {"no recovery with averaging off"};
  book.add(peer);
  const std::string report = failure_report(book.result(2));
  EXPECT_THAT(report, HasSubstr("rank 1 failed first: it was killed by signal 9"));
  EXPECT_THAT(report, HasSubstr("rank 0 followed: it ended with exit status 1"));
  EXPECT_THAT(report, HasSubstr("no recovery"));
  EXPECT_THAT(report, Not(HasSubstr("consequence")));
}

TEST(FailureReport, MentionsTheOutOfMemoryKillerOnlyForKillsFromOutside) {
  for (const DeathCause cause :
       {DeathCause::kOutside, DeathCause::kDrill, DeathCause::kRequested}) {
    DeathBook book;
    Ending kill = ending(0, SIGKILL, 1);
    kill.is_out_of_memory = true;
    kill.cause = cause;
    book.add(kill);
    const bool mentioned =
        failure_report(book.result(1)).find("out-of-memory") != std::string::npos;
    EXPECT_EQ(mentioned, cause == DeathCause::kOutside);
  }
}

TEST(DescribePlace, IsAbsentWhereThereIsNone) {
  EXPECT_EQ(describe_place(0, 3), "");
  EXPECT_EQ(describe_place(37, UINT32_MAX), " in step 37");
  EXPECT_EQ(describe_place(37, 0), " in step 37, microbatch 0");
}

}  // namespace
}  // namespace lockstep::launch
