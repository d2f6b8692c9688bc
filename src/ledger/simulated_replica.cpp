#include "src/ledger/simulated_replica.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "src/base/random.h"
#include "src/tree/sum.h"

namespace lockstep::ledger::simulated {
namespace {

enum Use : uint64_t { kUseCount, kUseKind, kUseLeaf, kUsePresent, kUseLoss, kUseDecision };

uint64_t place(uint32_t round, uint32_t microbatch, uint32_t index) {
  return uint64_t{round} << 40 | uint64_t{microbatch} << 16 | index;
}

float start_value(uint32_t i) { return 0.25f * static_cast<float>(i) - 1.0f; }

// Rule 3 word for word: node (level, index) of the leaves' values of one element.
std::optional<float> by_definition(const std::vector<Leaf>& leaves, uint32_t i, uint32_t level,
                                   uint32_t index) {
  if ((uint64_t{index} << level) >= leaves.size()) return std::nullopt;
  if (level == 0) {
    const bool present = (leaves[index].present >> (i / kParameterSize) & 1) != 0;
    return present ? std::optional<float>(leaves[index].values[i]) : std::nullopt;
  }
  const auto left = by_definition(leaves, i, level - 1, 2 * index);
  const auto right = by_definition(leaves, i, level - 1, 2 * index + 1);
  if (!left || !right) return left ? left : right;
  return *left + *right;
}

Step next_step(const Scenario& scenario, uint32_t round, const Values& weights) {
  Step step;
  std::vector<Leaf> leaves;
  for (uint32_t m = 0; m < scenario.microbatch_count(round); ++m) {
    leaves.push_back(leaf_of(scenario, round, m, weights));
    step.loss += leaves.back().loss;
    step.count += leaves.back().count;
    step.touched |= leaves.back().present;
  }
  step.weights = weights;
  if (scenario.kind(round) == RoundKind::kValues) return step;
  for (uint32_t i = 0; i < kValueCount; ++i) {
    const float sum = by_definition(leaves, i, 7, 0).value_or(0.0f);
    step.mean[i] = static_cast<float>(static_cast<double>(sum) / step.count);
  }
  update(step.weights, step.mean.data(), step.touched);
  return step;
}

}  // namespace

uint64_t Scenario::pick(uint64_t bound, uint64_t use, uint64_t detail) const {
  return base::mix_key(seed, use, detail) % bound;
}

uint32_t Scenario::microbatch_count(uint32_t round) const {
  return 1 + static_cast<uint32_t>(pick(most_microbatches, kUseCount, round));
}

RoundKind Scenario::kind(uint32_t round) const {
  const bool is_special = all_leave || poisoned_microbatch != UINT32_MAX;
  if (values_one_in == 0 || is_special) return RoundKind::kGradient;
  return pick(values_one_in, kUseKind, round) == 0 ? RoundKind::kValues : RoundKind::kGradient;
}

Leaf leaf_of(const Scenario& scenario, uint32_t round, uint32_t microbatch, const Values& weights) {
  constexpr float kScale[] = {1e8f, 1.0f, -1e8f, 3e-3f};
  Leaf leaf;
  for (uint32_t i = 0; i < kValueCount; ++i) {
    const uint64_t random = scenario.pick(4000, kUseLeaf, place(round, microbatch, i));
    leaf.values[i] = kScale[(microbatch + random / 2000) % 4] *
                         (1.0f + static_cast<float>(random % 1000) / 1e3f) +
                     weights[i];
  }
  for (uint32_t p = 0; p < kParameterCount; ++p) {
    const bool sits_out = p == 2 && round % 3 == 0;  // of the whole step
    const bool present = scenario.pick(4, kUsePresent, place(round, microbatch, p)) != 0;
    if (present && !sits_out) leaf.present |= 1u << p;
  }
  const uint64_t random = scenario.pick(1000, kUseLoss, place(round, microbatch, 0));
  leaf.loss = (microbatch % 2 == 0 ? 1e16 : -1e16) + static_cast<double>(random);
  leaf.count = 1.0 + static_cast<double>(random % 3);
  return leaf;
}

std::vector<Step> reference(const Scenario& scenario) {
  std::vector<Step> steps(1);
  for (uint32_t i = 0; i < kValueCount; ++i) steps[0].weights[i] = start_value(i);
  for (uint32_t round = 1; round <= scenario.round_count; ++round) {
    steps.push_back(next_step(scenario, round, steps.back().weights));
  }
  return steps;
}

void update(Values& weights, const float* mean, uint64_t touched) {
  for (uint32_t i = 0; i < kValueCount; ++i) {
    if ((touched >> (i / kParameterSize) & 1) != 0) weights[i] -= 0.1f * mean[i];
  }
}

bool same_bits(const void* left, const void* right, size_t size_bytes) {
  return std::memcmp(left, right, size_bytes) == 0;
}

bool goes_back(const Layout& layout, uint64_t offset, uint64_t before, uint64_t after) {
  const bool is_record = offset >= layout.records && offset < layout.buckets;
  const bool is_in_seat = offset >= layout.seats && offset < layout.claims;
  const uint64_t in_seat = (offset - layout.seats) % sizeof(Seat);
  const bool is_other = is_in_seat && in_seat >= offsetof(Seat, applied_hash_low);
  return (before >> 32) > (after >> 32) && !is_record && !is_other && offset < layout.touched;
}

Arena::Arena(const Scenario& scenario)
    : shape{scenario.rank_count, scenario.bucket_count, 1},
      layout(shape),
      block(std::calloc(layout.size_bytes + 64, 1), &std::free),
      slots(size_t{scenario.rank_count} * kSlotsPerSeat * kValueCount) {
  void* start = block.get();
  size_t room = layout.size_bytes + 64;
  ledger = static_cast<std::byte*>(std::align(64, layout.size_bytes, start, room));
  std::vector<uint16_t> members;
  for (uint32_t rank = 0; rank < scenario.rank_count; ++rank) {
    members.push_back(static_cast<uint16_t>(rank == scenario.absent_rank ? 0 : rank + 1));
  }
  Ledger::found(ledger, shape, members);
}

// -- The replica ----------------------------------------------------------------------------------

Replica::Replica(const Scenario& scenario, const std::vector<Step>& expected, Arena& arena,
                 uint32_t rank, uint16_t incarnation, bool is_joiner, Environment& environment)
    : scenario_(scenario),
      expected_(expected),
      arena_(arena),
      environment_(environment),
      ledger_(arena.ledger, arena.shape, rank, incarnation, environment),
      rank_(rank),
      incarnation_(incarnation),
      is_joiner_(is_joiner),
      is_admitted_(!is_joiner),
      weights_(expected[0].weights) {
  ledger_.allow_stealing(scenario.may_steal);
  if (scenario.shuffles && decides(2)) ledger_.shuffle_claims(scenario.seed + incarnation);
}

void Replica::run() {
  if (is_joiner_) {
    join();
  } else {
    environment_.has_state();
  }
  while (ledger_.round() < scenario_.round_count && !(is_joiner_ && ledger_.round() == 0)) step();
}

template <typename Ask>
void Replica::wait_for(const Ask& ask) {
  for (;;) {
    const uint64_t seen = environment_.event();
    if (ask()) return;
    environment_.wait(seen);
  }
}

bool Replica::decides(uint32_t one_in) {
  const uint64_t detail = uint64_t{incarnation_} << 32 | ++decisions_;
  return one_in != 0 && scenario_.pick(one_in, kUseDecision, detail) == 0;
}

void Replica::expect(bool holds, const std::string& claim) const {
  if (holds) return;
  throw Broken("rank " + std::to_string(rank_) + ", round " + std::to_string(ledger_.round()) +
               ": " + claim);
}

// -- Joining --------------------------------------------------------------------------------------

void Replica::join() {
  while (!ask_and_load()) {
    if (environment_.run_is_over()) return;
  }
  environment_.has_state();
}

bool Replica::ask_and_load() {
  ledger_.ask_to_join();
  std::optional<uint32_t> round;
  wait_for([&] {
    if (ledger_.failure() != nullptr) throw Failed{};
    return (round = ledger_.joined_round()) || environment_.run_is_over();
  });
  if (!round && !(round = ledger_.joined_round())) return false;
  Turn turn = Turn::kWait;
  if (scenario_.canary == Canary::kLoadsTooEarly) turn = Turn::kDone;
  wait_for([&] { return turn != Turn::kWait || (turn = ledger_.donation()) != Turn::kWait; });
  if (turn == Turn::kFailed) return false;
  expect(arena_.donation.round == *round, "the donated state is of the joined round");
  for (uint32_t i = 0; i < kValueCount; ++i) {
    weights_[i] = arena_.donation.weights[i];
    if (i == kValueCount / 2) environment_.pause();
  }
  expect(same_bits(&weights_, &expected_[*round].weights, sizeof weights_),
         "the donated state has the reference's bits");
  ledger_.loaded(*round);
  return true;
}

// One copy for all: a joiner that is told reads at once.
void Replica::serve_joiners() {
  const std::vector<uint32_t> joiners = ledger_.joiners_to_serve();
  if (joiners.empty()) return;
  arena_.donation.round = ledger_.round();
  for (uint32_t i = 0; i < kValueCount; ++i) {
    arena_.donation.weights[i] = weights_[i];
    if (i == kValueCount / 2) environment_.pause();
  }
  for (const uint32_t joiner : joiners) ledger_.donated(joiner);
}

// -- One step -------------------------------------------------------------------------------------

void Replica::step() {
  const uint32_t round = ledger_.round() + 1;
  ledger_.enter(scenario_.microbatch_count(round), scenario_.kind(round));
  work_or_watch();
  if (!ledger_.is_committed() && is_admitted_) {
    wait_until_all_done();
    if (scenario_.kind(round) == RoundKind::kGradient) reduce();
    commit();
  }
  apply();
  serve_joiners();
  if (!is_admitted_ && decides(2)) {
    ledger_.admit();
    is_admitted_ = true;
  }
}

// A joiner watches until it is admitted, or until nobody is left to compare with.
void Replica::work_or_watch() {
  if (!is_admitted_) {
    wait_for([&] {
      if (ledger_.failure() != nullptr) throw Failed{};
      return ledger_.is_committed() || !ledger_.lowest_living_member();
    });
    if (ledger_.is_committed()) return;
    ledger_.admit();
    is_admitted_ = true;
  }
  work();
  ledger_.arrive();
}

void Replica::work() {
  for (;;) {
    Work work;
    Turn turn = Turn::kWait;
    wait_for([&] { return (turn = ledger_.next(work)) != Turn::kWait; });
    if (turn == Turn::kFailed) throw Failed{};
    if (turn == Turn::kDone) return;
    environment_.started(work, ledger_);
    if (scenario_.canary == Canary::kFreesTooEarly) free_siblings_early(work);
    if (gives_back(work)) {
      if (decides(2)) return;
      continue;
    }
    compute(work);
    environment_.published();
    if (scenario_.all_leave && ledger_.round() == 2) return;
  }
}

bool Replica::gives_back(const Work& work) {
  if (!decides(scenario_.break_one_in)) return false;
  environment_.gives_back();
  ledger_.give_back(work);
  return true;
}

void Replica::compute(const Work& work) {
  const Leaf leaf = leaf_of(scenario_, ledger_.round(), work.microbatch, weights_);
  fill_record(work, leaf);
  if (scenario_.kind(ledger_.round()) == RoundKind::kValues) {
    ledger_.publish(work);
    return;
  }
  environment_.at(Point::kLeafDone);
  const bool too_early = scenario_.canary == Canary::kPublishesTooEarly;
  for (uint32_t p = 0; p < kParameterCount; ++p) {
    if (too_early && p + 1 == kParameterCount) ledger_.publish(work);
    merge_parameter(work, leaf, p);
  }
  if (!too_early) ledger_.publish(work);
}

void Replica::fill_record(const Work& work, const Leaf& leaf) {
  MicrobatchRecord& record = ledger_.record(work.microbatch);
  record.loss.store(leaf.loss, std::memory_order_relaxed);
  environment_.pause();
  record.count.store(leaf.count, std::memory_order_relaxed);
}

void Replica::merge_parameter(const Work& work, const Leaf& leaf, uint32_t parameter) {
  const uint32_t offset = parameter * kParameterSize;
  std::vector<tree::Operand<float>> operands;
  for (const Sibling& sibling : work.siblings) {
    environment_.reads(sibling.slot);
    const uint64_t touched = ledger_.touched(sibling.slot)[0].load(std::memory_order_relaxed);
    if ((touched >> parameter & 1) == 0) continue;
    operands.push_back({arena_.slot(sibling.slot) + offset, sibling.is_left});
  }
  if (scenario_.canary == Canary::kMergesInOtherOrder)
    std::reverse(operands.begin(), operands.end());
  const bool present = (leaf.present >> parameter & 1) != 0;
  environment_.writes(work);
  tree::merge<float>(arena_.slot(work.slot) + offset,
                     present ? leaf.values.data() + offset : nullptr, operands, kParameterSize);
  if (present || !operands.empty()) {
    ledger_.touched(work.slot)[0].fetch_or(uint64_t{1} << parameter, std::memory_order_relaxed);
  }
  environment_.pause();
}

// What average() does first. Arrivals are read before the state of the work: whoever arrived has
// published or given back before.
void Replica::wait_until_all_done() {
  wait_for([&] {
    if (ledger_.failure() != nullptr) throw Failed{};
    bool all_arrived = ledger_.all_arrived();
    if (ledger_.all_done()) return true;
    if (scenario_.canary == Canary::kAsksDoneFirst) all_arrived = ledger_.all_arrived();
    if (all_arrived) ledger_.fail(FailureKind::kUnclaimed, UINT32_MAX, rank_, "");
    return false;
  });
}

void Replica::reduce() {
  wait_for([&] {
    if (ledger_.failure() != nullptr) throw Failed{};
    return ledger_.all_applied_last() || scenario_.canary == Canary::kMeanTooEarly;
  });
  for (;;) {
    uint32_t bucket = 0;
    Turn turn = Turn::kWait;
    wait_for([&] { return (turn = ledger_.next_bucket(bucket)) != Turn::kWait; });
    if (turn == Turn::kFailed) throw Failed{};
    if (turn == Turn::kDone) return;
    reduce_bucket(bucket);
    ledger_.bucket_reduced(bucket);
  }
}

void Replica::reduce_bucket(uint32_t bucket) {
  const std::vector<CoverPart> cover = ledger_.cover();
  expect(!cover.empty(), "a claimed bucket has a complete cover");
  std::vector<tree::Node> nodes;
  for (const CoverPart& part : cover) nodes.push_back(part.node);
  const tree::SumPlan plan(tree::ReductionTree(ledger_.microbatch_count()), nodes);
  double count = 0.0;
  for (uint32_t m = 0; m < ledger_.microbatch_count(); ++m) {
    count += ledger_.record(m).count.load(std::memory_order_relaxed);
  }
  const uint32_t begin = kValueCount * bucket / scenario_.bucket_count;
  const uint32_t end = kValueCount * (bucket + 1) / scenario_.bucket_count;
  for (uint32_t at = begin; at < end;) {
    const uint32_t parameter = at / kParameterSize;
    const uint32_t stop = std::min(end, (parameter + 1) * kParameterSize);
    std::vector<const float*> inputs;
    for (const CoverPart& part : cover) {
      environment_.reads(part.slot);
      const uint64_t touched = ledger_.touched(part.slot)[0].load(std::memory_order_relaxed);
      inputs.push_back((touched >> parameter & 1) != 0 ? arena_.slot(part.slot) + at : nullptr);
    }
    plan.mean<float>(arena_.mean.data() + at, inputs, count, stop - at);
    environment_.pause();
    at = stop;
  }
}

void Replica::commit() {
  Turn turn = Turn::kWait;
  wait_for([&] { return (turn = ledger_.claim_commit()) != Turn::kWait; });
  if (turn == Turn::kFailed) throw Failed{};
  if (turn == Turn::kDone) return;
  fill_step_record();
  ledger_.commit();
}

void Replica::fill_step_record() {
  CommitRecord& record = ledger_.record_of(ledger_.round());
  record.loss = record.count = 0.0;
  for (uint32_t m = 0; m < ledger_.microbatch_count(); ++m) {
    record.loss += ledger_.record(m).loss.load(std::memory_order_relaxed);
    record.count += ledger_.record(m).count.load(std::memory_order_relaxed);
  }
  environment_.pause();
  uint64_t touched = 0;
  for (const CoverPart& part : ledger_.cover()) {
    environment_.reads(part.slot);
    touched |= ledger_.touched(part.slot)[0].load(std::memory_order_relaxed);
  }
  ledger_.step_touched(ledger_.round())[0].store(touched, std::memory_order_relaxed);
}

void Replica::apply() {
  const uint32_t round = ledger_.round();
  const CommitRecord& record = ledger_.record_of(round);
  check_step(record);
  if (scenario_.kind(round) == RoundKind::kGradient) {
    Values mean{};
    for (uint32_t i = 0; i < kValueCount; ++i) {
      mean[i] = arena_.mean[i];
      if (i == kValueCount / 2) environment_.pause();
    }
    const uint64_t touched = ledger_.step_touched(round)[0].load(std::memory_order_relaxed);
    expect(touched == expected_[round].touched, "the step's touched bits are the reference's");
    expect(same_bits(&mean, &expected_[round].mean, sizeof mean), "the mean has the same bits");
    update(weights_, mean.data(), touched);
  }
  expect(same_bits(&weights_, &expected_[round].weights, sizeof weights_),
         "the parameters have the reference's bits");
  base::Hash128 hash = base::hash_bytes(weights_.data(), sizeof weights_);
  if (rank_ == scenario_.diverging_rank && round == 2) ++hash.low;
  ledger_.set_applied(hash);
}

void Replica::check_step(const CommitRecord& record) const {
  const Step& step = expected_[ledger_.round()];
  expect(record.round == ledger_.round(), "the record is of this round");
  expect(same_bits(&record.loss, &step.loss, sizeof step.loss), "the loss has the same bits");
  expect(same_bits(&record.count, &step.count, sizeof step.count), "the count has the same bits");
  // The microbatches' records too, though others may be in the next round by now.
  double loss = 0.0;
  for (uint32_t m = 0; m < ledger_.microbatch_count(); ++m) {
    loss += ledger_.record(m).loss.load(std::memory_order_relaxed);
  }
  expect(same_bits(&loss, &step.loss, sizeof loss), "the records add up to the loss");
}

void Replica::free_siblings_early(const Work& work) {
  for (const Sibling& sibling : work.siblings) {
    auto* headers = reinterpret_cast<SlotHeader*>(arena_.ledger + arena_.layout.slots);
    headers[sibling.slot].word.store(Word{ledger_.round(), 0, kSlotFree, 0}.pack());
  }
}

}  // namespace lockstep::ledger::simulated
