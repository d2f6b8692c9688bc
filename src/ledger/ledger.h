#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/hash.h"
#include "src/ledger/host.h"
#include "src/ledger/layout.h"
#include "src/ledger/word.h"
#include "src/tree/tree.h"

namespace lockstep::ledger {

/// What a round is for.
enum class RoundKind {
  kGradient,  // microbatches leave partials in slots; a mean is reduced and committed
  kValues,    // microbatches leave records only (evaluation)
};

/// What a call found. Nothing here ever blocks: on kWait the caller sleeps on the event and asks
/// again; on kFailed it reads failure() and throws.
enum class Turn { kYours, kWait, kDone, kFailed };

/// A slot that is merged into a microbatch's partial.
struct Sibling {
  uint32_t slot = 0;
  bool is_left = true;  // stands left of what has been summed so far
};

/// One claimed microbatch. `siblings` were live when it was claimed and stay untouched until it is
/// published: merge them in this order, each on its side, into `slot`.
struct Work {
  uint32_t microbatch = 0;
  uint32_t seat = 0;       // whose run it came from
  bool is_orphan = false;  // it came from no run
  bool is_stolen = false;
  uint32_t slot = 0;  // kGradient only
  tree::Node node;    // what the slot will cover
  std::vector<Sibling> siblings;
};

/// A live partial of the finished batch.
struct CoverPart {
  uint32_t slot = 0;
  tree::Node node;
};

/// How much of the arena a batch needs, a pure function of K and the members.
struct SlotBudget {
  uint32_t owned = 0;   // slots of one seat that in-order work can occupy; reserved before step 1
  uint32_t stolen = 0;  // more for a thief; best effort
};
SlotBudget slot_budget(uint32_t microbatch_count, uint32_t member_count);

/// One replica's view of the table that says what of the current round is claimed, live, reduced
/// and committed (docs/ledger.md). A state machine over a block of shared memory: no I/O, no
/// waiting, no threads. Invariants: a leaf is a pure function of (step, microbatch); a live slot
/// never changes; a microbatch is done if and only if a live slot of its round covers it.
///
/// Not thread safe: one object per replica, any number of objects on one memory.
class Ledger {
 public:
  /// Prepares zeroed memory of Layout(shape).size_bytes. `members`: [rank] incarnation, 0 for none.
  static void found(std::byte* memory, const Shape& shape, std::span<const uint16_t> members);

  Ledger(std::byte* memory, const Shape& shape, uint32_t rank, uint16_t incarnation, Host& host);

  // -- The round ----------------------------------------------------------------------------

  /// Enters the next round, round() + 1, with K = `microbatch_count` >= 1. REQUIRES: the last
  /// round was committed, and set_applied() was called for it.
  void enter(uint32_t microbatch_count, RoundKind kind);
  uint32_t round() const { return round_; }
  uint32_t microbatch_count() const { return tree_.leaf_count(); }

  /// Forbids stealing where memory for a thief's slots is not to be had.
  void allow_stealing(bool allowed) { may_steal_ = allowed; }

  /// Shuffles the order in which this replica claims (tests: no order may matter).
  void shuffle_claims(uint64_t seed) { shuffle_seed_ = seed; }

  /// Claims a microbatch into `work`. kDone: the whole batch is done, by whoever.
  Turn next(Work& work);

  /// The record of a microbatch that this replica has claimed, or of any once all are done.
  MicrobatchRecord& record(uint32_t microbatch) const;

  /// Bit p: parameter p has a value in the slot. Written by the slot's author before publish().
  std::span<Shared<uint64_t>> touched(uint32_t slot) const;

  /// The microbatch is done: its slot goes live (or its record counts), its siblings are freed.
  void publish(const Work& work);

  /// The claim and the slot become free again, the work undone.
  void give_back(const Work& work);

  /// The whole batch is done: live slots cover it, or the round is committed already. Stays true
  /// for the rest of the round. To tell that microbatches were left over ask all_arrived() first.
  bool all_done() const;

  /// This member has left its microbatch loop for this round.
  void arrive();
  bool all_arrived() const;

  // -- Reduction, commit, application ---------------------------------------------------------

  /// The live slots that together cover the batch, from left to right; empty until all is done, and
  /// again once the others have gone on to the next round (see is_committed()).
  std::vector<CoverPart> cover() const;

  /// True once every living member's copy holds the last round: then the mean may be written.
  bool all_applied_last() const;

  /// Claims a bucket to reduce. kDone: all are reduced. REQUIRES: all_applied_last().
  Turn next_bucket(uint32_t& bucket);
  void bucket_reduced(uint32_t bucket);

  /// Claims the commit. kYours: fill record_of(round()) but for round and members, then commit().
  /// kDone: this round is committed. Checks the copies' hashes of the last round first, and fails
  /// the run where they differ (not for `compare_hashes` false: averaging is off).
  Turn claim_commit(bool compare_hashes = true);
  void commit();
  bool is_committed() const;

  /// The record of this round (once committed) or the last one.
  CommitRecord& record_of(uint32_t round) const;
  /// Touched bits of the step, beside its record.
  std::span<Shared<uint64_t>> step_touched(uint32_t round) const;

  /// This member's copy holds this round's mean, and its parameters have this hash.
  void set_applied(const base::Hash128& parameter_hash);
  base::Hash128 applied_hash(uint32_t rank) const;
  uint32_t applied_round(uint32_t rank) const;

  // -- Members --------------------------------------------------------------------------------

  /// Members of this round, from the last commit: incarnation by rank, or 0. Joiners that are not
  /// yet admitted are members that get no run.
  uint16_t member(uint32_t rank) const;
  bool is_joining(uint32_t rank) const;
  bool is_living_member(uint32_t rank) const;
  uint32_t living_member_count() const;
  std::optional<uint32_t> lowest_living_member() const;
  uint32_t rank() const { return rank_; }
  uint32_t rank_count() const { return shape_.rank_count; }

  /// A new process asks for the vacant seat of its rank.
  void ask_to_join();
  /// The round whose commit took this process in; none so far.
  std::optional<uint32_t> joined_round() const;
  /// A joiner waits for this: its donor's state of joined_round() lies in shared memory. kFailed:
  /// the donor died first; ask_to_join() again.
  Turn donation() const;
  /// Donor: ranks that joined at this round and whose state this member must copy now (it is the
  /// lowest living full member); mark each by donated().
  std::vector<uint32_t> joiners_to_serve() const;
  void donated(uint32_t joiner_rank);
  /// Joiner: has loaded the state; its next enter() is joined_round() + 1.
  void loaded(uint32_t joined_round);
  /// Joiner: has reproduced a leaf hash; full member from the next commit on.
  void admit();

  // -- Failure ----------------------------------------------------------------------------------

  void fail(FailureKind kind, uint32_t microbatch, uint32_t other_rank, const std::string& text);
  const Failure* failure() const;

 private:
  struct Live {
    uint32_t begin, end, slot;
    tree::Node node;
  };
  /// The words of all runs, or of all slots.
  using Words = std::vector<uint64_t>;

  Seat& seat(uint32_t rank) const;
  Shared<uint64_t>& claim_word(uint32_t microbatch) const;
  Shared<uint64_t>& bucket_word(uint32_t bucket) const;
  SlotHeader& slot(uint32_t index) const;
  Head& head() const;

  uint32_t member_word(uint32_t rank) const;
  uint32_t rank_of(uint16_t incarnation) const;
  bool is_admitted(uint32_t rank) const;
  bool holds_up(uint32_t rank) const;
  bool is_donation_lost(uint32_t rank) const;
  bool is_dead(uint16_t incarnation) const;
  bool has_left(uint16_t incarnation) const;

  Run run_in(uint64_t bits, uint32_t rank) const;
  Run run_of(uint32_t rank) const;
  Turn take_from_own_seats(Work& work);
  bool adopt_a_seat();
  bool adopt(uint32_t rank);
  bool lost_its_last(uint32_t rank, const Run& run) const;
  void put_back(uint32_t rank, uint32_t microbatch);
  std::optional<uint32_t> longest_run() const;
  uint32_t most_to_steal(const Run& run) const;
  bool steal();
  bool gather_orphans();
  bool become_keeper_of_orphans();
  bool all_runs_are_empty() const;
  bool lacks_work(uint32_t microbatch) const;
  bool may_be_done(uint32_t microbatch) const;
  Turn take_shuffled(Work& work);
  Turn claim(uint32_t microbatch, Work& work);
  void end_by_poison(uint32_t microbatch, uint16_t last_dead);
  void start(Work& work);

  uint32_t slot_count() const { return shape_.rank_count * kSlotsPerSeat; }
  Words slot_words() const;
  void collect_live(std::vector<Live>& live) const;
  bool collect_live_at_one_moment(std::vector<Live>& live) const;
  bool slot_is_free(uint64_t bits) const;
  uint32_t free_slot_count() const;
  uint32_t take_free_slot(uint32_t rank);
  bool take_slot(uint32_t index);
  void free_slot(uint32_t index);
  void free_superseded();

  bool may_take_in() const;
  bool takes_in(uint32_t rank, uint16_t donor, CommitRecord& record) const;
  void call_off_donation(uint32_t rank) const;
  void write_members(CommitRecord& record) const;
  bool check_hashes();
  void fail_between(FailureKind kind, uint32_t microbatch, uint32_t rank, uint32_t other_rank,
                    const std::string& text);

  std::byte* memory_;
  Shape shape_;
  Layout layout_;
  uint32_t rank_;
  uint16_t incarnation_;
  Host& host_;

  uint32_t round_ = 0;
  RoundKind kind_ = RoundKind::kGradient;
  tree::ReductionTree tree_{1};
  std::vector<uint32_t> members_;  // [rank] of this round, as CommitRecord has them
  std::vector<Run> initial_runs_;  // [rank]
  SlotBudget budget_;
  std::vector<uint32_t> own_seats_;
  bool may_steal_ = true;
  uint64_t shuffle_seed_ = 0;
  mutable uint32_t values_done_below_ = 0;  // kValues: all microbatches below are done
  mutable std::vector<Live> live_;          // scratch
};

}  // namespace lockstep::ledger
