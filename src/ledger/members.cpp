// The second half of Ledger: reduction, commit, members, failure.

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/ledger/ledger.h"

namespace lockstep::ledger {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

bool exchange_word(Shared<uint64_t>& word, uint64_t& expected, uint64_t desired) {
  return word.compare_exchange_strong(expected, desired, std::memory_order_acq_rel, kAcquire);
}

}  // namespace

// -- Reduction ------------------------------------------------------------------------------------

bool Ledger::all_applied_last() const {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (holds_up(rank) && seat(rank).applied.load(kAcquire) + 1 < round_) return false;
  }
  return true;
}

Turn Ledger::next_bucket(uint32_t& bucket) {
  if (failure() != nullptr) return Turn::kFailed;
  bool all_reduced = true;
  // Every replica starts at its own part, so that they seldom meet.
  const uint64_t first = uint64_t{shape_.bucket_count} * rank_ / shape_.rank_count;
  for (uint32_t i = 0; i < shape_.bucket_count; ++i) {
    const auto b = static_cast<uint32_t>((first + i) % shape_.bucket_count);
    uint64_t seen = bucket_word(b).load(kAcquire);
    const Word word = Word::unpack(seen);
    if (word.round > round_ || (word.round == round_ && word.phase == kReduced)) continue;
    all_reduced = false;
    if (word.round == round_ && word.phase == kReducing && !is_dead(word.incarnation)) continue;
    if (!exchange_word(bucket_word(b), seen, Word{round_, incarnation_, kReducing, 0}.pack())) {
      continue;
    }
    bucket = b;
    host_.at(Point::kBucketClaimed);
    return Turn::kYours;
  }
  return all_reduced ? Turn::kDone : Turn::kWait;
}

void Ledger::bucket_reduced(uint32_t bucket) {
  host_.at(Point::kBucketReduced);
  bucket_word(bucket).store(Word{round_, incarnation_, kReduced, 0}.pack(), kRelease);
  host_.changed();
}

// -- Commit ---------------------------------------------------------------------------------------

bool Ledger::is_committed() const {
  const Word word = Word::unpack(head().commit.load(kAcquire));
  return word.round > round_ || (word.round == round_ && word.phase == kCommittedPhase);
}

Turn Ledger::claim_commit(bool compare_hashes) {
  if (is_committed()) return Turn::kDone;
  if (failure() != nullptr) return Turn::kFailed;
  if (!all_applied_last()) return Turn::kWait;
  uint64_t seen = head().commit.load(kAcquire);
  const Word word = Word::unpack(seen);
  if (word.round == round_ && word.phase == kCommitting && !is_dead(word.incarnation)) {
    return Turn::kWait;
  }
  if (word.round == round_ && word.phase == kCommittedPhase) return Turn::kDone;
  if (!exchange_word(head().commit, seen, Word{round_, incarnation_, kCommitting, 0}.pack())) {
    return Turn::kWait;
  }
  host_.at(Point::kCommitClaimed);
  return compare_hashes && !check_hashes() ? Turn::kFailed : Turn::kYours;
}

void Ledger::commit() {
  if (kind_ == RoundKind::kGradient) {
    for (uint32_t b = 0; b < shape_.bucket_count; ++b) {
      const Word word = Word::unpack(bucket_word(b).load(kAcquire));
      LOCKSTEP_CHECK(word.round == round_ && word.phase == kReduced, word.round, round_);
    }
  }
  CommitRecord& record = record_of(round_);
  record.round = round_;
  write_members(record);
  host_.at(Point::kRecordWritten);
  head().commit.store(Word{round_, incarnation_, kCommittedPhase, 0}.pack(), kRelease);
  host_.changed();
  host_.at(Point::kCommitted);
}

// Compares the copies' parameters after the last round. False: they differ, and the run has failed.
bool Ledger::check_hashes() {
  std::optional<uint32_t> first;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (!holds_up(rank) || seat(rank).applied.load(kAcquire) != round_ - 1) continue;
    const Word join = Word::unpack(seat(rank).join.load(kAcquire));
    // A joiner's first copy is the donor's; it has no hash of its own yet.
    if (is_joining(rank) && join.round == round_ - 1) continue;
    if (!first) first = rank;
    if (applied_hash(rank) == applied_hash(*first)) continue;
    fail_between(FailureKind::kDiverged, UINT32_MAX, *first, rank, "");
    return false;
  }
  return true;
}

void Ledger::set_applied(const base::Hash128& parameter_hash) {
  host_.at(Point::kApplying);
  Seat& own = seat(rank_);
  own.applied_hash_low.store(parameter_hash.low, kRelaxed);
  own.applied_hash_high.store(parameter_hash.high, kRelaxed);
  own.applied.store(round_, kRelease);
  host_.changed();
  host_.at(Point::kApplied);
}

base::Hash128 Ledger::applied_hash(uint32_t rank) const {
  return {seat(rank).applied_hash_low.load(kRelaxed), seat(rank).applied_hash_high.load(kRelaxed)};
}

uint32_t Ledger::applied_round(uint32_t rank) const { return seat(rank).applied.load(kAcquire); }

// -- Members --------------------------------------------------------------------------------------

uint32_t Ledger::member_word(uint32_t rank) const {
  return round_ == 0 ? record_of(0).members[rank] : members_[rank];
}

uint16_t Ledger::member(uint32_t rank) const { return static_cast<uint16_t>(member_word(rank)); }

bool Ledger::is_joining(uint32_t rank) const { return (member_word(rank) & kJoiningFlag) != 0; }

bool Ledger::is_living_member(uint32_t rank) const {
  const uint16_t incarnation = member(rank);
  return incarnation != 0 && !is_dead(incarnation);
}

bool Ledger::is_admitted(uint32_t rank) const {
  const Word join = Word::unpack(seat(rank).join.load(kAcquire));
  return join.phase == kAdmittedPhase && join.incarnation == member(rank);
}

// A joiner whose donor died before its copy was complete will never apply anything: nobody waits
// for it, and the next commit drops it, or takes it in anew. A committer of this round may have
// died over the latter: then the donor is of this round, and the next committer has to do the same.
bool Ledger::holds_up(uint32_t rank) const {
  if (!is_living_member(rank)) return false;
  if (!is_joining(rank)) return true;
  const Word donor = Word::unpack(seat(rank).donor.load(kAcquire));
  return donor.round < round_ && !is_donation_lost(rank);
}

bool Ledger::is_donation_lost(uint32_t rank) const {
  const Word donor = Word::unpack(seat(rank).donor.load(kAcquire));
  if (donor.phase == kDonated) return false;
  if (donor.incarnation == 0) return true;  // called off
  if (!is_dead(donor.incarnation)) return false;
  // It may have completed the copy after the first look and then died.
  return Word::unpack(seat(rank).donor.load(kAcquire)).phase != kDonated;
}

uint32_t Ledger::living_member_count() const {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) count += is_living_member(rank);
  return count;
}

std::optional<uint32_t> Ledger::lowest_living_member() const {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (is_living_member(rank) && !is_joining(rank)) return rank;
  }
  return std::nullopt;
}

// The donor of a commit writes one copy for all its joiners. No new one may begin while an older
// copy is being written, or read by a joiner that has not applied its first mean.
bool Ledger::may_take_in() const {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    const Word donor = Word::unpack(seat(rank).donor.load(kAcquire));
    // Of this round: written by a committer that died.
    if (donor.incarnation == 0 || donor.round == round_) continue;
    if (donor.phase != kDonated && !is_dead(donor.incarnation)) return false;
    const bool is_loading =
        is_joining(rank) && holds_up(rank) && seat(rank).applied.load(kAcquire) == donor.round;
    if (is_loading) return false;
  }
  return true;
}

// Taken in with the state of this round, which the donor copies before its next claim. A committer
// may die anywhere here: the next one writes all of it again.
bool Ledger::takes_in(uint32_t rank, uint16_t donor, CommitRecord& record) const {
  uint64_t seen = seat(rank).join.load(kAcquire);
  const Word join = Word::unpack(seen);
  if (join.phase != kAsked || join.incarnation == 0 || is_dead(join.incarnation)) return false;
  if (join.round != 0 && join.round != round_) return false;
  seat(rank).donor.store(Word{round_, donor, 0, 0}.pack(), kRelease);
  seat(rank).applied.store(round_, kRelease);
  // Not a plain store: the joiner may be dead by now, and its successor have asked.
  if (!exchange_word(seat(rank).join, seen, Word{round_, join.incarnation, kAsked, 0}.pack())) {
    return false;
  }
  record.members[rank] = join.incarnation | kJoiningFlag;
  return true;
}

// A committer of this round died after it had named a donor, or the joiner died while it was taken
// in. Nobody will copy anything, so nobody may wait for that copy.
void Ledger::call_off_donation(uint32_t rank) const {
  const Word donor = Word::unpack(seat(rank).donor.load(kAcquire));
  if (donor.round == round_) seat(rank).donor.store(Word{round_, 0, 0, 0}.pack(), kRelease);
}

void Ledger::write_members(CommitRecord& record) const {
  const std::optional<uint32_t> donor = lowest_living_member();
  const bool is_open = donor && may_take_in();
  record.member_count = 0;
  for (uint32_t rank = 0; rank < kMostReplicas; ++rank) record.members[rank] = 0;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (holds_up(rank)) {
      const bool joins = is_joining(rank) && !is_admitted(rank);
      record.members[rank] = member(rank) | (joins ? kJoiningFlag : 0);
    } else if (!is_open || !takes_in(rank, member(*donor), record)) {
      call_off_donation(rank);
      continue;
    }
    ++record.member_count;
  }
}

void Ledger::ask_to_join() {
  seat(rank_).join.store(Word{0, incarnation_, kAsked, 0}.pack(), kRelease);
  host_.changed();
  host_.at(Point::kJoinAsked);
}

std::optional<uint32_t> Ledger::joined_round() const {
  const Word join = Word::unpack(seat(rank_).join.load(kAcquire));
  if (join.incarnation != incarnation_ || join.round == 0) return std::nullopt;
  const Word committed = Word::unpack(head().commit.load(kAcquire));
  const bool is_published = committed.round > join.round ||
                            (committed.round == join.round && committed.phase == kCommittedPhase);
  if (!is_published) return std::nullopt;
  return join.round;
}

Turn Ledger::donation() const {
  if (is_donation_lost(rank_)) return Turn::kFailed;
  const Word donor = Word::unpack(seat(rank_).donor.load(kAcquire));
  return donor.phase == kDonated ? Turn::kDone : Turn::kWait;
}

std::vector<uint32_t> Ledger::joiners_to_serve() const {
  std::vector<uint32_t> joiners;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if ((record_of(round_).members[rank] & kJoiningFlag) == 0) continue;
    const Word donor = Word::unpack(seat(rank).donor.load(kAcquire));
    if (donor.round == round_ && donor.incarnation == incarnation_ && donor.phase != kDonated) {
      joiners.push_back(rank);
    }
  }
  return joiners;
}

void Ledger::donated(uint32_t joiner_rank) {
  host_.at(Point::kDonorCopying);
  seat(joiner_rank).donor.store(Word{round_, incarnation_, kDonated, 0}.pack(), kRelease);
  host_.changed();
}

void Ledger::loaded(uint32_t joined_round) {
  round_ = joined_round;
  const CommitRecord& record = record_of(joined_round);
  members_.assign(record.members, record.members + shape_.rank_count);
  host_.at(Point::kJoinerLoaded);
}

void Ledger::admit() {
  const Word join = Word::unpack(seat(rank_).join.load(kAcquire));
  seat(rank_).join.store(Word{join.round, incarnation_, kAdmittedPhase, 0}.pack(), kRelease);
  host_.changed();
  host_.at(Point::kAdmitted);
}

// -- Failure --------------------------------------------------------------------------------------

void Ledger::fail(FailureKind kind, uint32_t microbatch, uint32_t other_rank,
                  const std::string& text) {
  fail_between(kind, microbatch, rank_, other_rank, text);
}

void Ledger::fail_between(FailureKind kind, uint32_t microbatch, uint32_t rank, uint32_t other_rank,
                          const std::string& text) {
  Failure& failure = head().failure;
  uint32_t author = failure.claimed.load(kAcquire);
  // The first one fills the fields; if it dies over it, whoever comes next does.
  if (author == incarnation_ || (author != 0 && !is_dead(static_cast<uint16_t>(author)))) return;
  if (failure.kind.load(kAcquire) != 0) return;
  if (!failure.claimed.compare_exchange_strong(author, incarnation_)) return;
  failure.round = round_;
  failure.microbatch = microbatch;
  failure.rank = rank;
  failure.other_rank = other_rank;
  const size_t length = std::min(text.size(), sizeof failure.text - 1);
  std::memcpy(failure.text, text.data(), length);
  failure.text[length] = '\0';
  failure.kind.store(static_cast<uint32_t>(kind), kRelease);
  host_.changed();
}

const Failure* Ledger::failure() const {
  const Failure& failure = head().failure;
  return failure.kind.load(kAcquire) == 0 ? nullptr : &failure;
}

}  // namespace lockstep::ledger
