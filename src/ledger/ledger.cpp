#include "src/ledger/ledger.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"
#include "src/base/random.h"

namespace lockstep::ledger {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

uint32_t levels_of(uint32_t microbatch_count) {
  return static_cast<uint32_t>(std::bit_width(microbatch_count - 1));
}

Run run_between(uint32_t round, uint64_t low, uint64_t high) {
  return {round, static_cast<uint16_t>(low), static_cast<uint16_t>(high)};
}

bool exchange_word(Shared<uint64_t>& word, uint64_t& expected, uint64_t desired) {
  return word.compare_exchange_strong(expected, desired, std::memory_order_acq_rel, kAcquire);
}

}  // namespace

SlotBudget slot_budget(uint32_t microbatch_count, uint32_t member_count) {
  SlotBudget budget;
  for (uint64_t q = 0; q < member_count; ++q) {
    const auto low = static_cast<uint32_t>(microbatch_count * q / member_count);
    const auto high = static_cast<uint32_t>(microbatch_count * (q + 1) / member_count);
    budget.owned = std::max(budget.owned, tree::slots_needed(low, high));
  }
  budget.stolen = std::min(levels_of(microbatch_count) + 4, kSlotsPerSeat - budget.owned);
  return budget;
}

// -- Memory ---------------------------------------------------------------------------------------

void Ledger::found(std::byte* memory, const Shape& shape, std::span<const uint16_t> members) {
  LOCKSTEP_CHECK(shape.rank_count >= 1 && shape.rank_count <= kMostReplicas, shape.rank_count,
                 kMostReplicas);
  Head& head = *reinterpret_cast<Head*>(memory);
  CommitRecord& record = head.records[0];
  record.round = 0;
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    record.members[rank] = members[rank];
    record.member_count += members[rank] != 0;
  }
  head.commit.store(Word{0, 0, kCommittedPhase, 0}.pack(), kRelease);
}

Ledger::Ledger(std::byte* memory, const Shape& shape, uint32_t rank, uint16_t incarnation,
               Host& host)
    : memory_(memory),
      shape_(shape),
      layout_(shape),
      rank_(rank),
      incarnation_(incarnation),
      host_(host),
      members_(shape.rank_count),
      initial_runs_(shape.rank_count) {}

Head& Ledger::head() const { return *reinterpret_cast<Head*>(memory_); }

Seat& Ledger::seat(uint32_t rank) const {
  return reinterpret_cast<Seat*>(memory_ + layout_.seats)[rank];
}

Shared<uint64_t>& Ledger::claim_word(uint32_t microbatch) const {
  return reinterpret_cast<Shared<uint64_t>*>(memory_ + layout_.claims)[microbatch];
}

Shared<uint64_t>& Ledger::bucket_word(uint32_t bucket) const {
  return reinterpret_cast<Shared<uint64_t>*>(memory_ + layout_.buckets)[bucket];
}

SlotHeader& Ledger::slot(uint32_t index) const {
  return reinterpret_cast<SlotHeader*>(memory_ + layout_.slots)[index];
}

MicrobatchRecord& Ledger::record(uint32_t microbatch) const {
  const uint64_t parity = round_ % 2;
  return reinterpret_cast<MicrobatchRecord*>(
      memory_ + layout_.records)[parity * kMostMicrobatches + microbatch];
}

CommitRecord& Ledger::record_of(uint32_t round) const { return head().records[round % 2]; }

std::span<Shared<uint64_t>> Ledger::touched(uint32_t slot) const {
  auto* words = reinterpret_cast<Shared<uint64_t>*>(memory_ + layout_.touched);
  return {words + uint64_t{slot} * shape_.touched_words, shape_.touched_words};
}

std::span<Shared<uint64_t>> Ledger::step_touched(uint32_t round) const {
  auto* words = reinterpret_cast<Shared<uint64_t>*>(memory_ + layout_.step_touched);
  return {words + uint64_t{round % 2} * shape_.touched_words, shape_.touched_words};
}

// -- The round ------------------------------------------------------------------------------------

void Ledger::enter(uint32_t microbatch_count, RoundKind kind) {
  LOCKSTEP_CHECK(microbatch_count >= 1 && microbatch_count <= kMostMicrobatches, microbatch_count,
                 kMostMicrobatches);
  ++round_;
  kind_ = kind;
  tree_ = tree::ReductionTree(microbatch_count);
  values_done_below_ = 0;
  own_seats_.assign(1, rank_);
  // A copy: the record of the round before last is overwritten as soon as all have applied the
  // last.
  const CommitRecord& last = record_of(round_ - 1);
  members_.assign(last.members, last.members + shape_.rank_count);
  uint32_t member_count = 0;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    member_count += member(rank) != 0 && !is_joining(rank);
  }
  LOCKSTEP_CHECK(member_count > 0, member_count, shape_.rank_count);
  uint64_t index = 0;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    initial_runs_[rank] = Run{round_, 0, 0};
    if (member(rank) == 0 || is_joining(rank)) continue;
    initial_runs_[rank] = run_between(round_, microbatch_count * index / member_count,
                                      microbatch_count * (index + 1) / member_count);
    ++index;
  }
  budget_ = slot_budget(microbatch_count, std::max(member_count, 1u));
}

// A word of an older round reads as free. One of a newer round means that the others have finished
// this one already: nothing is left here, and nothing may be written.
Run Ledger::run_in(uint64_t bits, uint32_t rank) const {
  const Run run = Run::unpack(bits);
  if (run.round > round_) return Run{round_, 0, 0};
  return run.round == round_ ? run : initial_runs_[rank];
}

Run Ledger::run_of(uint32_t rank) const { return run_in(seat(rank).run.load(kAcquire), rank); }

uint32_t Ledger::rank_of(uint16_t incarnation) const {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (member(rank) == incarnation) return rank;
  }
  return UINT32_MAX;
}

bool Ledger::is_dead(uint16_t incarnation) const {
  return incarnation != incarnation_ && host_.has_ended(incarnation);
}

// It will claim nothing more in this round.
bool Ledger::has_left(uint16_t incarnation) const {
  if (is_dead(incarnation)) return true;
  const uint32_t rank = rank_of(incarnation);
  return rank != UINT32_MAX && seat(rank).arrived.load(kAcquire) >= round_;
}

Turn Ledger::next(Work& work) {
  if (is_committed()) return Turn::kDone;
  if (failure() != nullptr) return Turn::kFailed;
  if (shuffle_seed_ != 0) {
    const Turn turn = take_shuffled(work);
    return turn != Turn::kWait ? turn : all_done() ? Turn::kDone : Turn::kWait;
  }
  do {
    const Turn turn = take_from_own_seats(work);
    if (turn != Turn::kWait) return turn;
  } while (adopt_a_seat() || (may_steal_ && steal()) || gather_orphans());
  return all_done() ? Turn::kDone : Turn::kWait;
}

Turn Ledger::take_from_own_seats(Work& work) {
  for (uint32_t rank : own_seats_) {
    for (;;) {
      uint64_t seen = seat(rank).run.load(kAcquire);
      const Run run = run_in(seen, rank);
      if (run.low >= run.high) break;
      if (!exchange_word(seat(rank).run, seen,
                         run_between(round_, run.low + 1u, run.high).pack())) {
        continue;  // a thief took from the far end
      }
      work = Work{};
      work.microbatch = run.low;
      work.seat = rank;
      work.is_stolen = rank != rank_ || run.low < initial_runs_[rank_].low ||
                       run.low >= initial_runs_[rank_].high;
      const Turn turn = claim(run.low, work);
      if (turn != Turn::kWait) return turn;
    }
  }
  return Turn::kWait;
}

Turn Ledger::claim(uint32_t microbatch, Work& work) {
  uint64_t seen = claim_word(microbatch).load(kAcquire);
  const Word word = Word::unpack(seen);
  uint8_t attempts = 0;
  bool died_of_it = false;
  if (word.round > round_) return Turn::kWait;
  if (word.round == round_) {
    attempts = word.attempts;
    if (word.phase == kDone) return Turn::kWait;
    if (word.phase == kClaimed) {
      if (!is_dead(word.incarnation) || may_be_done(microbatch)) return Turn::kWait;
      died_of_it = host_.ended_by_fault(word.incarnation);
      if (died_of_it) ++attempts;
    }
  }
  if (attempts >= 2) {
    end_by_poison(microbatch, word.incarnation);
    return failure() != nullptr ? Turn::kFailed : Turn::kWait;
  }
  // Before the exchange, so that whoever sees its attempts sees the name. Right also if that fails.
  if (died_of_it) {
    record(microbatch).fault.store(Word{round_, word.incarnation, 0, 0}.pack(), kRelaxed);
  }
  if (!exchange_word(claim_word(microbatch), seen,
                     Word{round_, incarnation_, kClaimed, attempts}.pack())) {
    return Turn::kWait;
  }
  host_.at(Point::kClaim);
  start(work);
  return Turn::kYours;
}

// By purity the microbatch would kill whoever tries next.
void Ledger::end_by_poison(uint32_t microbatch, uint16_t last_dead) {
  const Word first = Word::unpack(record(microbatch).fault.load(kRelaxed));
  const uint32_t first_rank = first.round == round_ ? rank_of(first.incarnation) : UINT32_MAX;
  fail_between(FailureKind::kPoisonousMicrobatch, microbatch, first_rank, rank_of(last_dead), "");
}

// A sibling of this microbatch's nodes can be merged by nobody else, so none is missed or freed.
void Ledger::start(Work& work) {
  work.node = tree_.leaf(work.microbatch);
  work.siblings.clear();
  if (kind_ == RoundKind::kValues) return;
  collect_live(live_);
  while (!tree_.is_root(work.node)) {
    const auto sibling = tree_.sibling(work.node);
    const auto found = std::find_if(live_.begin(), live_.end(),
                                    [&](const Live& live) { return live.node == *sibling; });
    if (found == live_.end()) break;
    work.siblings.push_back({found->slot, tree_.is_left(found->node)});
    work.node = tree_.parent(work.node);
  }
  work.slot = take_free_slot(work.seat);
}

// Goes on with the seat of one that died or left its loop early, in its order and with its slots.
bool Ledger::adopt_a_seat() {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    if (adopt(rank)) return true;
  }
  return false;
}

bool Ledger::adopt(uint32_t rank) {
  uint64_t seen = seat(rank).owner.load(kAcquire);
  const Word word = Word::unpack(seen);
  if (word.round > round_) return false;
  const uint16_t owner = word.round == round_ ? word.incarnation : member(rank);
  if (owner == 0 || owner == incarnation_ || !has_left(owner)) return false;
  const Run run = run_of(rank);
  const bool lost = lost_its_last(rank, run);
  if (run.low >= run.high && !lost) return false;
  if (!exchange_word(seat(rank).owner, seen, Word{round_, incarnation_, 1, 0}.pack())) return false;
  own_seats_.push_back(rank);
  if (lost) put_back(rank, run.low - 1u);
  return true;
}

// Its owner died over the microbatch that it took last.
bool Ledger::lost_its_last(uint32_t rank, const Run& run) const {
  if (run.low == 0 || Run::unpack(seat(rank).run.load(kAcquire)).round != round_) return false;
  const Word word = Word::unpack(claim_word(run.low - 1u).load(kAcquire));
  return word.round == round_ && word.phase == kClaimed && is_dead(word.incarnation) &&
         !may_be_done(run.low - 1u);
}

// Puts the microbatch last taken from the seat's run back at its low end: work stays in order, so
// the seat's slots suffice.
void Ledger::put_back(uint32_t rank, uint32_t microbatch) {
  for (;;) {
    uint64_t seen = seat(rank).run.load(kAcquire);
    const Run run = Run::unpack(seen);
    if (run.round != round_ || run.low != microbatch + 1) return;
    if (exchange_word(seat(rank).run, seen, run_between(round_, microbatch, run.high).pack()))
      return;
  }
}

std::optional<uint32_t> Ledger::longest_run() const {
  std::optional<uint32_t> longest;
  int length = 0;
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    const Run run = run_of(rank);
    if (run.high - run.low <= length) continue;
    length = run.high - run.low;
    longest = rank;
  }
  return longest;
}

// 0: not even one.
uint32_t Ledger::most_to_steal(const Run& run) const {
  const uint32_t most = std::max(1u, (run.high - run.low) / 2u);
  if (kind_ == RoundKind::kValues) return most;
  const uint32_t free = free_slot_count();
  return free < 2 ? 0 : std::min(most, 1u << std::min(free - 2, 16u));
}

bool Ledger::steal() {
  const std::optional<uint32_t> victim = longest_run();
  if (!victim || *victim == rank_) return false;
  uint64_t seen = seat(*victim).run.load(kAcquire);
  const Run run = run_in(seen, *victim);
  if (run.low >= run.high) return true;  // look again
  const auto node = tree_.largest_ending_at(run.low, run.high, most_to_steal(run));
  if (!node) return false;
  const uint32_t low = tree_.begin(*node);
  const uint64_t stolen = run_between(round_, low, run.high).pack();
  // A range on its way is in no run: announced, so that nobody takes it for orphans. If the thief
  // dies between these stores, that is what they are.
  uint64_t own = seat(rank_).run.load();
  if (Run::unpack(own).round > round_) return false;
  seat(rank_).stealing.store(stolen);
  if (exchange_word(seat(*victim).run, seen, run_between(round_, run.low, low).pack())) {
    exchange_word(seat(rank_).run, own, stolen);  // fails only if the round is over
  }
  seat(rank_).stealing.store(run_between(round_, 0, 0).pack());
  return true;
}

// -- Orphans: microbatches in no run, of a thief that died between two stores or an owner that died
// between taking and claiming. One replica at a time takes a stretch of them as its run: in order
// they merge, while takers in turn would fill the slots with single leaves.

bool Ledger::gather_orphans() {
  if (!all_runs_are_empty() || !become_keeper_of_orphans() || !all_runs_are_empty()) return false;
  uint32_t low = 0;
  while (low < tree_.leaf_count() && !lacks_work(low)) ++low;
  if (low == tree_.leaf_count()) return false;
  uint32_t high = low + 1;
  while (high < tree_.leaf_count() && lacks_work(high)) ++high;
  uint64_t seen = seat(rank_).run.load(kAcquire);
  if (Run::unpack(seen).round > round_) return false;
  return exchange_word(seat(rank_).run, seen, run_between(round_, low, high).pack());
}

bool Ledger::become_keeper_of_orphans() {
  uint64_t seen = head().orphans.load(kAcquire);
  const Word keeper = Word::unpack(seen);
  if (keeper.round > round_) return false;
  if (keeper.round == round_) {
    if (keeper.incarnation == incarnation_) return true;
    if (!has_left(keeper.incarnation)) return false;
  }
  return exchange_word(head().orphans, seen, Word{round_, incarnation_, 1, 0}.pack());
}

// At one moment: read twice, since a range can move from a run not yet seen to one already seen.
bool Ledger::all_runs_are_empty() const {
  Words words[2];
  for (Words& pass : words) {
    for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
      const Run stealing = Run::unpack(seat(rank).stealing.load());
      const uint64_t word = seat(rank).run.load();
      const Run run = run_in(word, rank);
      const bool is_moving =
          stealing.round == round_ && stealing.low < stealing.high && is_living_member(rank);
      if (run.low < run.high || is_moving) return false;
      pass.push_back(word);
    }
  }
  return words[0] == words[1];
}

bool Ledger::lacks_work(uint32_t microbatch) const {
  const Word word = Word::unpack(claim_word(microbatch).load(kAcquire));
  if (word.round != round_) return word.round < round_;
  if (word.phase == kFree) return true;
  return word.phase == kClaimed && is_dead(word.incarnation) && !may_be_done(microbatch);
}

Turn Ledger::take_shuffled(Work& work) {
  const uint32_t count = tree_.leaf_count();
  const uint64_t key = base::mix_key(shuffle_seed_, round_);
  for (uint32_t i = 0; i < count; ++i) {
    const auto m = static_cast<uint32_t>(base::permute_index(key, count, i));
    if (!lacks_work(m)) continue;
    work = Work{};
    work.microbatch = m;
    work.seat = rank_;
    work.is_orphan = true;
    const Turn turn = claim(m, work);
    if (turn != Turn::kWait) return turn;
  }
  return Turn::kWait;
}

// -- Slots ----------------------------------------------------------------------------------------

// For the user of the slot's seat only: it takes the slot by exchanging the very word that it
// looked at, so that one which went live after that look and then died is left alone.
bool Ledger::slot_is_free(uint64_t bits) const {
  const Word word = Word::unpack(bits);
  if (word.round != round_) return word.round < round_;
  if (word.phase != kWriting) return word.phase == kSlotFree;
  return is_dead(word.incarnation);
}

uint32_t Ledger::free_slot_count() const {
  uint32_t count = 0;
  const uint32_t first = rank_ * kSlotsPerSeat;
  for (uint32_t i = first; i < first + budget_.owned + budget_.stolen; ++i) {
    count += slot_is_free(slot(i).word.load(kAcquire));
  }
  return count;
}

bool Ledger::take_slot(uint32_t index) {
  uint64_t seen = slot(index).word.load(kAcquire);
  if (!slot_is_free(seen)) return false;
  const auto taken = static_cast<uint8_t>(Word::unpack(seen).attempts + 1);
  if (!exchange_word(slot(index).word, seen, Word{round_, incarnation_, kWriting, taken}.pack())) {
    return false;
  }
  for (auto& word : touched(index)) word.store(0, kRelaxed);
  return true;
}

// In-order work always finds a slot among those the budget names. The rest of the seat's room is
// for orphans and holes that deaths leave: pages that nobody touches otherwise.
uint32_t Ledger::take_free_slot(uint32_t rank) {
  const uint32_t first = rank * kSlotsPerSeat;
  for (int is_second_try = 0; is_second_try < 2; ++is_second_try) {
    for (uint32_t i = first; i < first + kSlotsPerSeat; ++i) {
      if (take_slot(i)) return i;
    }
    free_superseded();
  }
  LOCKSTEP_CHECK(false, rank, round_);
  return 0;
}

// A live slot of this round becomes free; whatever else it is, it stays.
void Ledger::free_slot(uint32_t index) {
  uint64_t seen = slot(index).word.load(kAcquire);
  const Word word = Word::unpack(seen);
  if (word.round != round_ || word.phase != kLiveSlot) return;
  exchange_word(slot(index).word, seen, Word{round_, 0, kSlotFree, word.attempts}.pack());
}

// Live slots under other live slots, whose author died before it freed them.
void Ledger::free_superseded() {
  collect_live(live_);
  for (const Live& inner : live_) {
    const bool superseded = std::any_of(live_.begin(), live_.end(), [&inner](const Live& outer) {
      return outer.end - outer.begin > inner.end - inner.begin && outer.begin <= inner.begin &&
             inner.end <= outer.end;
    });
    if (superseded) free_slot(inner.slot);
  }
}

// What it finds was live; a partial that is merged meanwhile can be missed, with what replaces it.
void Ledger::collect_live(std::vector<Live>& live) const {
  live.clear();
  for (uint32_t i = 0; i < slot_count(); ++i) {
    const uint64_t bits = slot(i).word.load(kAcquire);
    const Word word = Word::unpack(bits);
    if (word.round != round_ || word.phase != kLiveSlot) continue;
    const tree::Node node{slot(i).node_level.load(kAcquire), slot(i).node_index.load(kAcquire)};
    if (slot(i).word.load(kAcquire) != bits) continue;  // freed meanwhile: the node may be torn
    live.push_back({tree_.begin(node), tree_.end(node), i, node});
  }
}

Ledger::Words Ledger::slot_words() const {
  Words words(slot_count());
  for (uint32_t i = 0; i < slot_count(); ++i) words[i] = slot(i).word.load(kAcquire);
  return words;
}

// Nothing is missed: no word changed while it looked. False: the others are too busy to tell.
bool Ledger::collect_live_at_one_moment(std::vector<Live>& live) const {
  constexpr int kMostTries = 64;
  Words before = slot_words();
  for (int i = 0; i < kMostTries; ++i) {
    collect_live(live);
    Words after = slot_words();
    if (before == after) return true;
    before = std::move(after);
  }
  return false;
}

// False only where it is certain: then a dead replica's claim on it may be taken over.
bool Ledger::may_be_done(uint32_t microbatch) const {
  if (kind_ == RoundKind::kValues) {
    const Word word = Word::unpack(claim_word(microbatch).load(kAcquire));
    return word.round > round_ || (word.round == round_ && word.phase == kDone);
  }
  if (!collect_live_at_one_moment(live_)) return true;
  const bool is_live = std::any_of(live_.begin(), live_.end(), [microbatch](const Live& live) {
    return live.begin <= microbatch && microbatch < live.end;
  });
  return is_live || is_committed();  // then the slots that it looked at tell of the next round
}

std::vector<CoverPart> Ledger::cover() const {
  if (!collect_live_at_one_moment(live_)) return {};
  std::sort(live_.begin(), live_.end(), [](const Live& left, const Live& right) {
    return left.begin != right.begin ? left.begin < right.begin : left.end > right.end;
  });
  std::vector<CoverPart> parts;
  uint32_t covered = 0;
  for (const Live& live : live_) {
    if (live.end <= covered) continue;  // superseded: its author died before freeing it
    if (live.begin != covered) return {};
    parts.push_back({live.slot, live.node});
    covered = live.end;
  }
  if (covered != tree_.leaf_count()) parts.clear();
  return parts;
}

bool Ledger::all_done() const {
  if (is_committed()) return true;  // the others have gone on: their slots tell of the next round
  if (kind_ == RoundKind::kGradient) return !cover().empty() || is_committed();
  while (values_done_below_ < tree_.leaf_count() && may_be_done(values_done_below_)) {
    ++values_done_below_;
  }
  return values_done_below_ == tree_.leaf_count();
}

void Ledger::publish(const Work& work) {
  if (kind_ == RoundKind::kValues) {
    host_.at(Point::kLeafDone);
    claim_word(work.microbatch).store(Word{round_, incarnation_, kDone, 0}.pack(), kRelease);
    host_.changed();
    return;
  }
  SlotHeader& header = slot(work.slot);
  const uint8_t taken = Word::unpack(header.word.load(kRelaxed)).attempts;
  header.node_level.store(work.node.level, kRelease);
  header.node_index.store(work.node.index, kRelease);
  host_.at(Point::kSlotWritten);
  // The author may die before or after this store, not in it. A reader that sees `live` must see
  // every byte of the partial and of the record, hence release here and acquire there.
  header.word.store(Word{round_, incarnation_, kLiveSlot, taken}.pack(), kRelease);
  host_.at(Point::kLive);
  for (const Sibling& sibling : work.siblings) {
    free_slot(sibling.slot);
    host_.at(Point::kChildFreed);
  }
  host_.changed();
}

void Ledger::give_back(const Work& work) {
  if (kind_ == RoundKind::kGradient) {
    const uint8_t taken = Word::unpack(slot(work.slot).word.load(kRelaxed)).attempts;
    slot(work.slot).word.store(Word{round_, 0, kSlotFree, taken}.pack(), kRelease);
  }
  const Word claimed = Word::unpack(claim_word(work.microbatch).load(kAcquire));
  claim_word(work.microbatch)
      .store(Word{round_, incarnation_, kFree, claimed.attempts}.pack(), kRelease);
  if (!work.is_orphan) put_back(work.seat, work.microbatch);
  host_.changed();
}

void Ledger::arrive() {
  seat(rank_).arrived.store(round_, kRelease);
  host_.changed();
}

bool Ledger::all_arrived() const {
  for (uint32_t rank = 0; rank < shape_.rank_count; ++rank) {
    const bool claims = !is_joining(rank) || is_admitted(rank);
    if (!is_living_member(rank) || !claims) continue;
    if (seat(rank).arrived.load(kAcquire) != round_) return false;
  }
  return true;
}

}  // namespace lockstep::ledger
