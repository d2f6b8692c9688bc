#include "src/ledger/ledger.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "src/ledger/simulated_replica.h"

namespace lockstep::ledger {
namespace {

struct Die {};

class TestHost final : public Host {
 public:
  bool has_ended(uint16_t incarnation) const override { return dead.contains(incarnation); }
  bool ended_by_fault(uint16_t incarnation) const override { return faults.contains(incarnation); }
  void changed() override { ++changes; }
  void at(Point point) override {
    if (dies_at == point) {
      dies_at.reset();
      throw Die{};
    }
  }

  std::set<uint16_t> dead, faults;
  std::optional<Point> dies_at;
  int changes = 0;
};

/// A few replicas on one memory; rank r's founding member has incarnation r + 1.
class LedgerTest : public ::testing::Test {
 protected:
  void found(uint32_t rank_count, uint32_t absent_rank = UINT32_MAX) {
    shape_ = {rank_count, 2, 1};
    const Layout layout(shape_);
    block_.reset(std::calloc(layout.size_bytes + 64, 1));  // pages cost nothing until touched
    void* start = block_.get();
    size_t room = layout.size_bytes + 64;
    memory_ = static_cast<std::byte*>(std::align(64, layout.size_bytes, start, room));
    ledgers_.clear();
    host_.dead.clear();
    std::vector<uint16_t> members;
    for (uint32_t rank = 0; rank < rank_count; ++rank) {
      members.push_back(static_cast<uint16_t>(rank == absent_rank ? 0 : rank + 1));
    }
    Ledger::found(memory_, shape_, members);
    for (uint32_t rank = 0; rank < rank_count; ++rank) add(rank, static_cast<uint16_t>(rank + 1));
  }

  Ledger& add(uint32_t rank, uint16_t incarnation) {
    ledgers_[incarnation] = std::make_unique<Ledger>(memory_, shape_, rank, incarnation, host_);
    return *ledgers_[incarnation];
  }

  Ledger& by(uint16_t incarnation) { return *ledgers_.at(incarnation); }

  void enter(uint32_t microbatch_count, RoundKind kind = RoundKind::kGradient) {
    for (auto& [incarnation, ledger] : ledgers_) {
      if (!host_.dead.contains(incarnation)) ledger->enter(microbatch_count, kind);
    }
  }

  // Claims what it is given, and nothing else.
  Work claim(uint16_t incarnation) {
    Work work;
    EXPECT_EQ(by(incarnation).next(work), Turn::kYours);
    return work;
  }

  void do_all(uint16_t incarnation) {
    Work work;
    while (by(incarnation).next(work) == Turn::kYours) by(incarnation).publish(work);
  }

  // The point at which the replica dies while it works on its next microbatch.
  Work die_at(uint16_t incarnation, Point point) {
    Work work;
    host_.dies_at = point;
    try {
      if (by(incarnation).next(work) == Turn::kYours) by(incarnation).publish(work);
      ADD_FAILURE() << "it did not die";
    } catch (const Die&) {
      host_.dead.insert(incarnation);
    }
    return work;
  }

  void reduce_and_commit(uint16_t incarnation) {
    uint32_t bucket = 0;
    while (by(incarnation).next_bucket(bucket) == Turn::kYours)
      by(incarnation).bucket_reduced(bucket);
    EXPECT_EQ(by(incarnation).claim_commit(), Turn::kYours);
    by(incarnation).commit();
  }

  void apply_all(uint64_t hash = 1) {
    for (auto& [incarnation, ledger] : ledgers_) {
      if (!host_.dead.contains(incarnation)) ledger->set_applied({hash, 0});
    }
  }

  TestHost host_;
  Shape shape_;
  std::unique_ptr<void, decltype(&std::free)> block_{nullptr, &std::free};
  std::byte* memory_ = nullptr;
  std::map<uint16_t, std::unique_ptr<Ledger>> ledgers_;  // [incarnation]
};

// -- Work -----------------------------------------------------------------------------------------

TEST_F(LedgerTest, RunsAreContiguousAndEachIsWorkedInOrder) {
  found(3);
  enter(10);
  EXPECT_EQ(claim(1).microbatch, 0u);
  EXPECT_EQ(claim(2).microbatch, 3u);
  EXPECT_EQ(claim(3).microbatch, 6u);
  EXPECT_EQ(claim(1).microbatch, 1u);
}

TEST_F(LedgerTest, SiblingsAreMergedFromTheNearOneToTheFarOne) {
  found(1);
  enter(8);
  std::vector<uint32_t> slots;
  for (uint32_t m = 0; m < 7; ++m) {
    const Work work = claim(1);
    slots.push_back(work.slot);
    by(1).publish(work);
  }
  const Work last = claim(1);  // 7 merges with 6, then 4..5, then 0..3
  ASSERT_EQ(last.siblings.size(), 3u);
  EXPECT_EQ(last.siblings[0].slot, slots[6]);
  EXPECT_EQ(last.siblings[1].slot, slots[5]);
  EXPECT_EQ(last.siblings[2].slot, slots[3]);
  for (const Sibling& sibling : last.siblings) EXPECT_TRUE(sibling.is_left);
  by(1).publish(last);
  const auto cover = by(1).cover();
  ASSERT_EQ(cover.size(), 1u);
  EXPECT_EQ(cover[0].node, (tree::Node{3, 0}));
}

TEST_F(LedgerTest, InOrderWorkNeedsTheSlotsOfTheBudgetAndNoMore) {
  for (uint32_t count = 1; count <= 70; ++count) {
    found(1);
    enter(count);
    Work work;
    uint32_t most = 0;
    while (by(1).next(work) == Turn::kYours) {
      most = std::max(most, work.slot + 1);
      by(1).publish(work);
    }
    EXPECT_EQ(most, slot_budget(count, 1).owned) << count;
    ledgers_.clear();
  }
}

TEST_F(LedgerTest, AThiefTakesAnAlignedNodeFromTheFarEndAndAtMostHalf) {
  found(2);
  enter(16);
  for (int i = 0; i < 8; ++i) by(2).publish(claim(2));  // 8..15
  const Work first = claim(2);                          // of 0..7 it takes 4..7
  EXPECT_TRUE(first.is_stolen);
  EXPECT_EQ(first.microbatch, 4u);
  for (uint32_t m = 0; m < 4; ++m) EXPECT_EQ(claim(1).microbatch, m);
}

TEST_F(LedgerTest, WhereStealingIsForbiddenAReplicaWaits) {
  found(2);
  enter(4);
  by(2).allow_stealing(false);
  by(2).publish(claim(2));
  by(2).publish(claim(2));
  Work work;
  EXPECT_EQ(by(2).next(work), Turn::kWait);
  do_all(1);
  EXPECT_EQ(by(2).next(work), Turn::kDone);
}

TEST_F(LedgerTest, AThiefTakesNoMoreThanItsFreeSlotsAllow) {
  found(2);
  enter(64);
  Work work;
  uint32_t most = 0;
  while (by(2).next(work) == Turn::kYours) {
    most = std::max(most, work.slot + 1 - kSlotsPerSeat);
    by(2).publish(work);
  }
  const SlotBudget budget = slot_budget(64, 2);
  EXPECT_LE(most, budget.owned + budget.stolen);
  EXPECT_TRUE(by(2).all_done());
}

TEST_F(LedgerTest, AMicrobatchGivenBackComesAgain) {
  found(2);
  enter(4);
  const Work work = claim(1);
  by(1).give_back(work);
  EXPECT_EQ(claim(1).microbatch, work.microbatch);
}

TEST_F(LedgerTest, ARunWhoseOwnerLeftIsTakenOverEvenWhereStealingIsForbidden) {
  found(2);
  enter(8);
  by(2).allow_stealing(false);
  by(1).publish(claim(1));
  by(1).give_back(claim(1));
  by(1).arrive();
  do_all(2);
  EXPECT_TRUE(by(2).all_done());
}

TEST_F(LedgerTest, MicrobatchesLeftOverAreSeenWhenAllHaveArrived) {
  found(2);
  enter(4);
  by(1).publish(claim(1));
  by(1).arrive();
  EXPECT_FALSE(by(1).all_arrived());
  by(2).arrive();
  EXPECT_TRUE(by(1).all_arrived());
  EXPECT_FALSE(by(1).all_done());
}

TEST_F(LedgerTest, AShuffledReplicaDoesTheWholeBatch) {
  found(1);
  enter(13);
  by(1).shuffle_claims(7);
  do_all(1);
  EXPECT_TRUE(by(1).all_done());
}

TEST_F(LedgerTest, ARoundForValuesNeedsNoSlotsAndNoMean) {
  found(2);
  enter(5, RoundKind::kValues);
  do_all(1);
  EXPECT_TRUE(by(2).all_done());
  EXPECT_TRUE(by(1).cover().empty());
  EXPECT_EQ(by(1).claim_commit(), Turn::kYours);
  by(1).commit();
  EXPECT_TRUE(by(2).is_committed());
}

TEST_F(LedgerTest, WordsOfAnOlderRoundReadAsFree) {
  found(2);
  for (uint32_t count : {7u, 3u, 12u}) {
    enter(count);
    EXPECT_FALSE(by(1).all_done());
    do_all(1);
    reduce_and_commit(2);
    apply_all();
  }
  EXPECT_EQ(by(1).round(), 3u);
}

TEST_F(LedgerTest, OneThatIsStillInARoundThatTheOthersLeftTouchesNothing) {
  found(2);
  enter(4);
  do_all(1);
  reduce_and_commit(1);
  by(1).set_applied({1, 0});
  by(1).enter(4, RoundKind::kGradient);
  const Work next_round = claim(1);
  Work work;
  EXPECT_EQ(by(2).next(work), Turn::kDone);
  uint32_t bucket = 0;
  EXPECT_EQ(by(2).next_bucket(bucket), Turn::kDone);
  EXPECT_EQ(by(2).claim_commit(), Turn::kDone);
  by(1).publish(next_round);
  EXPECT_EQ(claim(1).microbatch, 1u);
}

// -- Deaths ---------------------------------------------------------------------------------------

TEST_F(LedgerTest, ASeatIsAdoptedInItsOrderWithItsSlots) {
  found(2);
  enter(8);
  by(1).publish(claim(1));
  die_at(1, Point::kClaim);  // on microbatch 1
  for (int i = 0; i < 4; ++i) by(2).publish(claim(2));
  const Work adopted = claim(2);
  EXPECT_EQ(adopted.microbatch, 1u);
  EXPECT_EQ(adopted.seat, 0u);
  EXPECT_LT(adopted.slot, kSlotsPerSeat);
  EXPECT_EQ(adopted.siblings.size(), 1u);  // what the dead one published lives on
}

TEST_F(LedgerTest, AMicrobatchThatWentLiveIsNotDoneAgain) {
  found(2);
  enter(2);
  die_at(1, Point::kLive);
  by(2).publish(claim(2));
  Work work;
  EXPECT_EQ(by(2).next(work), Turn::kDone);
}

TEST_F(LedgerTest, ASlotThatWasNotLiveIsDoneAgain) {
  found(2);
  enter(2);
  const Work lost = die_at(1, Point::kSlotWritten);
  by(2).publish(claim(2));
  const Work again = claim(2);
  EXPECT_EQ(again.microbatch, lost.microbatch);
  EXPECT_EQ(again.slot, lost.slot);  // in order, a seat's slots suffice for its adopter too
}

TEST_F(LedgerTest, ChildrenThatWereNotFreedAreSuperseded) {
  found(2);
  enter(4);
  by(1).publish(claim(1));
  die_at(1, Point::kLive);  // 0..1 is live, and 0 still is
  do_all(2);
  const auto cover = by(2).cover();
  ASSERT_FALSE(cover.empty());
  uint32_t covered = 0;
  const tree::ReductionTree tree(4);
  for (const CoverPart& part : cover) {
    EXPECT_EQ(tree.begin(part.node), covered);
    covered = tree.end(part.node);
  }
  EXPECT_EQ(covered, 4u);
}

TEST_F(LedgerTest, OrphansOfADeadThiefAreFound) {
  found(3);
  enter(12);
  auto* seats = reinterpret_cast<Seat*>(memory_ + Layout(shape_).seats);
  // As a thief leaves it that dies between its two stores: 2..3 are in no run.
  seats[0].run.store(ledger::Run{1, 0, 2}.pack());
  host_.dead.insert(3);
  Work work;
  std::set<uint32_t> seen;
  while (by(1).next(work) == Turn::kYours) {
    EXPECT_TRUE(seen.insert(work.microbatch).second);
    by(1).publish(work);
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST_F(LedgerTest, ARangeOnItsWayToALivingThiefIsNoOrphan) {
  found(2);
  enter(4);
  auto* seats = reinterpret_cast<Seat*>(memory_ + Layout(shape_).seats);
  seats[0].run.store(ledger::Run{1, 0, 0}.pack());
  seats[0].stealing.store(ledger::Run{1, 0, 2}.pack());
  by(2).publish(claim(2));
  by(2).publish(claim(2));
  Work work;
  EXPECT_EQ(by(2).next(work), Turn::kWait);
  host_.dead.insert(1);
  EXPECT_EQ(claim(2).microbatch, 0u);
}

TEST_F(LedgerTest, TwoDeathsByFaultOnOneMicrobatchEndTheRunAndNameBoth) {
  found(3);
  enter(3);
  host_.faults = {1, 2};
  const uint32_t poison = [&] {
    claim(1);
    host_.dead.insert(1);
    return 0u;
  }();
  by(2).publish(claim(2));
  EXPECT_EQ(claim(2).microbatch, poison);
  host_.dead.insert(2);
  by(3).publish(claim(3));
  Work work;
  EXPECT_EQ(by(3).next(work), Turn::kFailed);
  const Failure* failure = by(3).failure();
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->kind.load(), static_cast<uint32_t>(FailureKind::kPoisonousMicrobatch));
  EXPECT_EQ(failure->microbatch, poison);
  EXPECT_EQ(failure->rank, 0u);
  EXPECT_EQ(failure->other_rank, 1u);
}

// -- Reduction and commit -------------------------------------------------------------------------

TEST_F(LedgerTest, ABucketOfADeadReplicaIsReducedAgain) {
  found(2);
  enter(2);
  do_all(1);
  uint32_t bucket = 9;
  EXPECT_EQ(by(1).next_bucket(bucket), Turn::kYours);
  uint32_t other = 9;
  EXPECT_EQ(by(2).next_bucket(other), Turn::kYours);
  EXPECT_NE(bucket, other);
  by(2).bucket_reduced(other);
  EXPECT_EQ(by(2).next_bucket(other), Turn::kWait);
  host_.dead.insert(1);
  EXPECT_EQ(by(2).next_bucket(other), Turn::kYours);
  EXPECT_EQ(other, bucket);
  by(2).bucket_reduced(other);
  EXPECT_EQ(by(2).next_bucket(other), Turn::kDone);
}

TEST_F(LedgerTest, TheCommitOfADeadReplicaIsTakenOver) {
  found(2);
  enter(2);
  do_all(1);
  uint32_t bucket = 0;
  while (by(1).next_bucket(bucket) == Turn::kYours) by(1).bucket_reduced(bucket);
  EXPECT_EQ(by(1).claim_commit(), Turn::kYours);
  EXPECT_EQ(by(2).claim_commit(), Turn::kWait);
  host_.dies_at = Point::kRecordWritten;
  EXPECT_THROW(by(1).commit(), Die);
  EXPECT_FALSE(by(2).is_committed());
  host_.dead.insert(1);
  EXPECT_EQ(by(2).claim_commit(), Turn::kYours);
  by(2).commit();
  EXPECT_EQ(by(2).record_of(1).members[0], 0u);
  EXPECT_EQ(by(2).record_of(1).member_count, 1u);
}

TEST_F(LedgerTest, TheMeanWaitsUntilAllHaveAppliedTheLast) {
  found(2);
  enter(2);
  do_all(1);
  reduce_and_commit(1);
  by(1).set_applied({1, 0});
  by(1).enter(2, RoundKind::kGradient);
  do_all(1);
  EXPECT_FALSE(by(1).all_applied_last());
  EXPECT_EQ(by(1).claim_commit(), Turn::kWait);
  by(2).set_applied({1, 0});
  EXPECT_TRUE(by(1).all_applied_last());
}

TEST_F(LedgerTest, CopiesThatDifferEndTheRun) {
  found(2);
  enter(2);
  do_all(1);
  reduce_and_commit(1);
  by(1).set_applied({1, 0});
  by(2).set_applied({2, 0});
  enter(2);
  do_all(1);
  uint32_t bucket = 0;
  while (by(1).next_bucket(bucket) == Turn::kYours) by(1).bucket_reduced(bucket);
  EXPECT_EQ(by(1).claim_commit(), Turn::kFailed);
  ASSERT_NE(by(2).failure(), nullptr);
  EXPECT_EQ(by(2).failure()->kind.load(), static_cast<uint32_t>(FailureKind::kDiverged));
}

// -- Interruptions: others do something between any two accesses of one call
// ------------------------

class Interrupted : public LedgerTest {
 protected:
  ~Interrupted() override {
    before_access = nullptr;
    after_write = nullptr;
  }

  // Calls `act` with `others` run before the access number `moment`. Returns how many there were up
  // to then, or all.
  uint64_t interrupt(uint64_t moment, const std::function<void()>& others,
                     const std::function<void()>& act) {
    test = this;
    moment_ = moment;
    accesses_ = 0;
    others_ = &others;
    before_access = [](bool) {
      if (test->accesses_++ != test->moment_) return;
      before_access = nullptr;
      (*test->others_)();
    };
    after_write = [](const void* word, uint64_t before, uint64_t after) {
      const auto offset =
          static_cast<uint64_t>(static_cast<const std::byte*>(word) - test->memory_);
      EXPECT_FALSE(simulated::goes_back(Layout(test->shape_), offset, before, after))
          << "interrupted at " << test->moment_;
    };
    act();
    before_access = nullptr;
    return accesses_;
  }

  // Replica 1 does what is left of round 1, as far as it can, and begins round 2.
  void run_ahead(uint32_t count, RoundKind kind) {
    do_all(1);
    if (!by(1).all_done()) return;
    commit_round(1);
    by(1).set_applied({1, 0});
    by(1).enter(count, kind);
    for (int i = 0; i < 3; ++i) by(1).publish(claim(1));
  }

  void commit_buckets(uint16_t incarnation) {
    uint32_t bucket = 0;
    while (by(incarnation).next_bucket(bucket) == Turn::kYours) {
      by(incarnation).bucket_reduced(bucket);
    }
  }

  void commit_round(uint16_t incarnation) {
    commit_buckets(incarnation);
    if (by(incarnation).claim_commit() == Turn::kYours) by(incarnation).commit();
  }

  // Replica 2, in round 1 and perhaps the only one there, goes on; then both do round 2.
  void go_on(const Work& first, Turn turn, uint32_t count, RoundKind kind) {
    if (turn == Turn::kYours) by(2).publish(first);
    do_all(2);
    if (by(1).round() == 1) {
      do_all(1);
      commit_round(1);
      by(1).set_applied({1, 0});
      by(1).enter(count, kind);
    }
    ASSERT_TRUE(by(2).is_committed());
    by(2).set_applied({1, 0});
    by(2).enter(count, kind);
    do_all(2);
    do_all(1);
    ASSERT_TRUE(by(1).all_done());
    ASSERT_TRUE(by(2).all_done());
    commit_round(2);
    ASSERT_TRUE(by(1).is_committed());
  }

  static inline Interrupted* test = nullptr;

 private:
  uint64_t moment_ = 0;
  uint64_t accesses_ = 0;
  const std::function<void()>* others_ = nullptr;
};

/// What replica 2 is about to do when it is interrupted.
enum class Intent { kOwnRun, kSteal, kAdopt, kAdoptUnused, kOrphans, kShuffled, kValues };

class FallsBehind : public Interrupted, public ::testing::WithParamInterface<Intent> {
 protected:
  static constexpr uint32_t kCount = 12;

  // Ranks 0 and 1 live; rank 2 is dead, having done its run where nobody is to go on with it.
  void prepare() {
    constexpr int kRun = kCount / 3;
    const Intent intent = GetParam();
    kind_ = intent == Intent::kValues ? RoundKind::kValues : RoundKind::kGradient;
    found(3);
    enter(kCount, kind_);
    if (intent == Intent::kAdopt) {
      die_at(3, Point::kClaim);
    } else if (intent == Intent::kAdoptUnused) {
      by(1).shuffle_claims(5);  // which leaves the dead one's run as it is
    } else {
      for (int i = 0; i < kRun; ++i) by(3).publish(claim(3));
    }
    host_.dead.insert(3);
    if (intent == Intent::kOwnRun) return;
    for (int i = 0; i < kRun; ++i) by(2).publish(claim(2));
    if (intent == Intent::kShuffled) by(2).shuffle_claims(5);
    if (intent != Intent::kOrphans) return;
    auto* seats = reinterpret_cast<Seat*>(memory_ + Layout(shape_).seats);
    seats[0].run.store(ledger::Run{1, 0, 0}.pack());
  }

  RoundKind kind_ = RoundKind::kGradient;
};

TEST_P(FallsBehind, AtAnyMomentItWritesNothingOverTheNextRound) {
  uint64_t moments = 1;
  for (uint64_t moment = 0; moment < moments && moment < 20'000; ++moment) {
    if (moment == 0) {
      prepare();
      moments = interrupt(
          UINT64_MAX, [] {},
          [this] {
            Work work;
            static_cast<void>(by(2).next(work));
          });
    }
    prepare();
    Turn turn = Turn::kWait;
    Work work;
    interrupt(
        moment, [this] { run_ahead(kCount, kind_); }, [&] { turn = by(2).next(work); });
    ASSERT_NO_FATAL_FAILURE(go_on(work, turn, kCount, kind_)) << "interrupted at " << moment;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(moments, 5u);
}

INSTANTIATE_TEST_SUITE_P(Intents, FallsBehind,
                         ::testing::Values(Intent::kOwnRun, Intent::kSteal, Intent::kAdopt,
                                           Intent::kAdoptUnused, Intent::kOrphans,
                                           Intent::kShuffled, Intent::kValues));

// The node of a slot that is freed and taken again while it is looked at may be that of a partial
// that is not live.
TEST_F(Interrupted, ASlotThatIsTakenAgainMeanwhileIsNoSibling) {
  uint64_t moments = 1;
  for (uint64_t moment = 0; moment < moments && moment < 20'000; ++moment) {
    found(2);
    enter(8);
    for (int i = 0; i < 4; ++i) by(2).publish(claim(2));
    by(1).publish(claim(1));
    const Work second = claim(1);
    Work work;
    const auto others = [&] {
      by(1).publish(second);  // frees the slot of microbatch 0
      host_.dies_at = Point::kSlotWritten;
      Work third;
      try {
        if (by(1).next(third) == Turn::kYours) by(1).publish(third);
      } catch (const Die&) {
      }
      host_.dies_at.reset();
    };
    const uint64_t count = interrupt(moment, others, [&] {
      if (by(2).next(work) != Turn::kYours) ADD_FAILURE() << "nothing to steal";
    });
    moments = std::max(moments, count + 1);
    if (count < moment) break;
    const auto* slots = reinterpret_cast<SlotHeader*>(memory_ + Layout(shape_).slots);
    for (const Sibling& sibling : work.siblings) {
      const ledger::Word word = ledger::Word::unpack(slots[sibling.slot].word.load());
      ASSERT_EQ(word.phase, kLiveSlot) << "interrupted at " << moment;
    }
  }
  EXPECT_GT(moments, 100u);
}

// -- Joining --------------------------------------------------------------------------------------

class JoinTest : public Interrupted {
 protected:
  // Rank 2 is vacant; incarnation 3 asks for it and is taken in with the state of round 1.
  void SetUp() override {
    found(3, 2);
    joiner().ask_to_join();
    step(1);
  }

  static constexpr uint16_t kMembers[] = {1, 2};

  Ledger& joiner() { return by(3); }

  // The members 1 and 2, as far as they live, do one round.
  void step(uint16_t worker) {
    for (const uint16_t member : kMembers) {
      if (!host_.dead.contains(member)) by(member).enter(4, RoundKind::kGradient);
    }
    do_all(worker);
    reduce_and_commit(worker);
    for (const uint16_t member : kMembers) {
      if (!host_.dead.contains(member)) by(member).set_applied({1, 0});
    }
  }
};

TEST_F(JoinTest, AJoinerGetsTheStateOfItsCommitFromTheLowestMember) {
  EXPECT_EQ(joiner().joined_round(), 1u);
  EXPECT_EQ(joiner().donation(), Turn::kWait);
  EXPECT_TRUE(by(2).joiners_to_serve().empty());
  EXPECT_EQ(by(1).joiners_to_serve(), std::vector<uint32_t>{2});
  by(1).donated(2);
  EXPECT_EQ(joiner().donation(), Turn::kDone);
}

TEST_F(JoinTest, AJoinerDelaysTheSecondMeanAndNotTheFirst) {
  by(1).donated(2);
  step(1);  // round 2, while the joiner loads
  by(1).enter(4, RoundKind::kGradient);
  EXPECT_FALSE(by(1).all_applied_last());
  joiner().loaded(1);
  joiner().enter(4, RoundKind::kGradient);
  EXPECT_TRUE(joiner().is_joining(2));
  joiner().set_applied({1, 0});
  EXPECT_TRUE(by(1).all_applied_last());
}

TEST_F(JoinTest, AnAdmittedJoinerIsAFullMemberFromTheNextCommitOn) {
  by(1).donated(2);
  joiner().loaded(1);
  joiner().admit();
  step(1);
  EXPECT_EQ(by(1).record_of(2).members[2], 3u);
}

TEST_F(JoinTest, WhenTheDonorDiesTheJoinerIsDroppedAndAsksAgain) {
  host_.dead.insert(1);
  EXPECT_EQ(joiner().donation(), Turn::kFailed);
  by(2).enter(4, RoundKind::kGradient);
  do_all(2);
  EXPECT_TRUE(by(2).all_applied_last());  // nobody waits for the joiner
  joiner().ask_to_join();
  reduce_and_commit(2);
  by(2).set_applied({1, 0});
  EXPECT_EQ(joiner().joined_round(), 2u);
  EXPECT_EQ(by(2).joiners_to_serve(), std::vector<uint32_t>{2});
}

TEST_F(JoinTest, NobodyElseIsTakenInWhileAJoinerMayStillBeLoading) {
  by(1).donated(2);
  host_.dead.insert(2);
  Ledger& second = add(1, 4);
  second.ask_to_join();
  step(1);
  EXPECT_EQ(second.joined_round(), std::nullopt);
  joiner().loaded(1);
  joiner().enter(4, RoundKind::kGradient);
  joiner().set_applied({1, 0});
  step(1);
  EXPECT_EQ(second.joined_round(), 3u);
}

// The joiner dies and its successor asks while a commit takes the first one in: the wish stands.
TEST_F(JoinTest, AWishToJoinSurvivesACommitThatTakesADeadPredecessorIn) {
  uint64_t moments = 1;
  for (uint64_t moment = 0; moment < moments && moment < 20'000; ++moment) {
    found(3, 2);
    joiner().ask_to_join();
    for (const uint16_t member : kMembers) by(member).enter(4, RoundKind::kGradient);
    do_all(1);
    const auto others = [this] {
      host_.dead.insert(3);
      add(2, 4).ask_to_join();
    };
    const uint64_t count = interrupt(moment, others, [this] { reduce_and_commit(1); });
    moments = std::max(moments, count + 1);
    if (host_.dead.empty()) break;
    for (const uint16_t member : kMembers) by(member).set_applied({1, 0});
    for (const uint32_t joined : by(1).joiners_to_serve()) by(1).donated(joined);
    if (by(4).joined_round() != 1u) step(1);
    ASSERT_TRUE(by(4).joined_round()) << "interrupted at " << moment;
  }
  EXPECT_GT(moments, 30u);
}

// The committer dies over taking a joiner in anew, between any two of its accesses.
TEST_F(JoinTest, AJoinerThatAsksAgainIsTakenInWhenACommitterDiesOverIt) {
  uint64_t moments = 1;
  for (uint64_t moment = 0; moment < moments && moment < 20'000; ++moment) {
    found(4, 2);
    joiner().ask_to_join();
    const auto all_but = [](uint16_t dead) {
      std::vector<uint16_t> members{1, 2, 4};
      std::erase(members, dead);
      return members;
    };
    for (const uint16_t member : all_but(0)) by(member).enter(4, RoundKind::kGradient);
    do_all(2);
    reduce_and_commit(2);
    host_.dead.insert(1);  // the donor
    for (const uint16_t member : all_but(1)) by(member).set_applied({1, 0});
    ASSERT_EQ(joiner().donation(), Turn::kFailed);
    joiner().ask_to_join();
    for (const uint16_t member : all_but(1)) by(member).enter(4, RoundKind::kGradient);
    do_all(4);
    commit_buckets(4);
    bool died = false;
    const uint64_t count = interrupt(
        moment, [] { throw Die{}; },
        [&] {
          try {
            EXPECT_EQ(by(4).claim_commit(), Turn::kYours);
            by(4).commit();
          } catch (const Die&) {
            died = true;
          }
        });
    moments = std::max(moments, count + 1);
    if (!died) break;
    host_.dead.insert(4);
    if (by(2).claim_commit() == Turn::kYours) by(2).commit();
    ASSERT_TRUE(by(2).is_committed());
    ASSERT_EQ(joiner().joined_round(), 2u) << "died at " << moment;
  }
  EXPECT_GT(moments, 20u);
}

// A copy for one that is dead by now is still being written, and the next donor would be another.
TEST_F(JoinTest, NobodyIsTakenInWhileADonorStillCopies) {
  found(3, 0);
  Ledger& lowest = by(1);
  lowest.ask_to_join();
  const auto step_of = [this](const std::vector<uint16_t>& members) {
    for (const uint16_t member : members) by(member).enter(4, RoundKind::kGradient);
    do_all(members.back());
    reduce_and_commit(members.back());
    for (const uint16_t member : members) by(member).set_applied({1, 0});
  };
  step_of({2, 3});
  by(2).donated(0);
  lowest.loaded(1);
  step_of({1, 2});
  lowest.admit();  // full from the commit of round 3 on
  host_.dead.insert(3);
  add(2, 4).ask_to_join();
  step_of({1, 2});  // takes incarnation 4 in, to be served by incarnation 2
  ASSERT_EQ(by(2).joiners_to_serve(), std::vector<uint32_t>{2});
  host_.dead.insert(4);
  add(2, 5).ask_to_join();
  step_of({1, 2});
  EXPECT_EQ(by(5).joined_round(), std::nullopt);
  by(2).donated(2);
  step_of({1, 2});
  EXPECT_EQ(by(5).joined_round(), 5u);
}

// -- Failure --------------------------------------------------------------------------------------

TEST_F(LedgerTest, TheFirstFailureStands) {
  found(2);
  enter(2);
  by(1).fail(FailureKind::kOther, 1, 0, "first");
  by(2).fail(FailureKind::kOther, 0, 1, "second");
  EXPECT_STREQ(by(2).failure()->text, "first");
  Work work;
  EXPECT_EQ(by(2).next(work), Turn::kFailed);
}

}  // namespace
}  // namespace lockstep::ledger
