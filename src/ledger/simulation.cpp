#include "src/ledger/simulation.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::ledger::simulated {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kMostTurns = 4'000'000;

struct Killed {};

enum class State { kReady, kWaiting, kDead, kFinished, kFailed };

class Simulation;

struct Fiber final : Environment {
  Fiber(Simulation& in_simulation, uint32_t of_rank, uint16_t with_incarnation, bool joins)
      : simulation(in_simulation), rank(of_rank), incarnation(with_incarnation), is_joiner(joins) {}

  bool has_ended(uint16_t other) const override;
  bool ended_by_fault(uint16_t other) const override;
  void changed() override;
  void at(Point point) override;
  uint64_t event() const override;
  void wait(uint64_t seen) override;
  void pause() override;
  bool run_is_over() const override;
  void started(const Work& started_work, const Ledger& ledger) override;
  void writes(const Work& written_work) override;
  void reads(uint32_t slot) override;
  void published() override { is_working = false; }
  void gives_back() override;
  void has_state() override { is_loaded = true; }

  bool is_alive() const { return state == State::kReady || state == State::kWaiting; }

  Simulation& simulation;
  uint32_t rank;
  uint16_t incarnation;
  bool is_joiner;
  bool is_loaded = false;  // could carry the run on alone
  State state = State::kReady;
  uint64_t waits_for = 0;  // event value it goes to sleep on
  uint64_t shows_at = 0;   // kDead: the turn from which others see it
  bool by_fault = false;
  Point last_point = Point::kClaim;
  std::array<uint32_t, kPointCount> visits{};
  uint32_t slowness = 1;

  bool is_working = false;  // between claim and live
  Work work;
  uint32_t round = 0;
  uint32_t microbatch_count = 0;

  ucontext_t context{};
  void* fake_stack = nullptr;
};

/// What the checks know of a slot: who may write it, and its bytes since it is live.
struct ShadowSlot {
  uint16_t author = 0;
  uint32_t live_round = 0;
  tree::Node node;
  Values bytes{};
};

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario);
  ~Simulation();

  Outcome run();

  void yield(Fiber& fiber);
  void die(Fiber& fiber, bool by_fault, std::optional<Point> point);
  void die_by_chance(Fiber& fiber, uint32_t one_in, std::optional<Point> point);
  void blame(const Fiber& fiber);
  void maybe_die(Fiber& fiber, Point point);
  void step(Fiber& fiber, bool is_write);
  void check_write(const void* word, uint64_t before, uint64_t after) const;
  void check_start(Fiber& fiber, const Ledger& ledger);
  void note_live(Fiber& fiber);
  uint64_t random(uint64_t bound) { return random_() % bound; }
  Fiber& fiber_of(uint16_t incarnation) { return *fibers_.at(incarnation - 1u); }
  bool shows_death(const Fiber& fiber) const {
    return fiber.state == State::kDead && fiber.shows_at <= turn_;
  }

  const Scenario& scenario_;
  std::vector<Step> expected_;
  Arena arena_;
  Outcome outcome_;
  uint64_t event_ = 0;
  bool is_over_ = false;
  std::vector<ShadowSlot> shadows_;                            // [slot]
  std::map<std::pair<uint32_t, uint32_t>, uint16_t> workers_;  // (round, m): who claimed it last
  std::set<std::pair<uint32_t, uint32_t>> done_;               // (round, m): is live
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> faults_;   // (round, m): deaths by fault

 private:
  static void enter_fiber(unsigned low, unsigned high);
  void run_fiber(Fiber& fiber);
  void add_fiber(uint32_t rank, bool joins);
  void show_deaths();
  void start_joiners();
  std::vector<Fiber*> runnable();
  Fiber& choose(const std::vector<Fiber*>& candidates);
  void switch_to(Fiber& fiber);
  bool nobody_carries_on() const;
  bool is_last_with_state(const Fiber& fiber) const;
  bool is_full_member(const Fiber& fiber) const;
  Role role_of(const Fiber& fiber) const;
  bool wakes_by_time();
  std::string describe() const;
  void check_end();
  void check_failure();

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // [incarnation - 1]
  std::vector<std::unique_ptr<std::byte[]>> stacks_;
  ucontext_t scheduler_{};
  uint64_t turn_ = 0;
  uint32_t joins_ = 0;
  std::vector<uint16_t> shown_;  // [incarnation - 1] its death woke everyone
};

Fiber* running = nullptr;  // the one that before_access() speaks of

// Stacks outlive the runs: mapping them anew for every seed would cost more than the run.
std::vector<std::unique_ptr<std::byte[]>>& idle_stacks() {
  static std::vector<std::unique_ptr<std::byte[]>> stacks;
  return stacks;
}

// -- A fiber's surroundings -----------------------------------------------------------------------

bool Fiber::has_ended(uint16_t other) const {
  // A moment between reading a word and acting on it: let others run here now and then.
  if (simulation.random(6) == 0) simulation.yield(const_cast<Fiber&>(*this));
  return simulation.shows_death(simulation.fiber_of(other));
}

bool Fiber::ended_by_fault(uint16_t other) const { return simulation.fiber_of(other).by_fault; }

void Fiber::changed() {
  if (simulation.scenario_.canary != Canary::kForgetsToNotify) ++simulation.event_;
  simulation.yield(*this);
}

void Fiber::at(Point point) {
  last_point = point;
  if (point == Point::kLive) simulation.note_live(*this);
  simulation.maybe_die(*this, point);
  simulation.yield(*this);
}

uint64_t Fiber::event() const { return simulation.event_; }

void Fiber::wait(uint64_t seen) {
  state = State::kWaiting;
  waits_for = seen;
  simulation.yield(*this);
}

void Fiber::pause() { simulation.yield(*this); }

bool Fiber::run_is_over() const { return simulation.is_over_; }

void Fiber::started(const Work& started_work, const Ledger& ledger) {
  work = started_work;
  is_working = true;
  round = ledger.round();
  microbatch_count = ledger.microbatch_count();
  simulation.check_start(*this, ledger);
}

void Fiber::gives_back() {
  is_working = false;
  simulation.workers_.erase({round, work.microbatch});
  if (simulation.scenario_.kind(round) == RoundKind::kGradient) {
    simulation.shadows_[work.slot].author = 0;
  }
}

void Fiber::writes(const Work& written_work) {
  const ShadowSlot& shadow = simulation.shadows_[written_work.slot];
  if (shadow.author != incarnation) throw Broken("a slot is written by one that is not its author");
}

void Fiber::reads(uint32_t slot) {
  const ShadowSlot& shadow = simulation.shadows_[slot];
  if (shadow.live_round == 0) throw Broken("a slot is read that is not live");
  if (!same_bits(shadow.bytes.data(), simulation.arena_.slot(slot), sizeof shadow.bytes)) {
    throw Broken("a live slot has changed");
  }
}

// -- Checks ---------------------------------------------------------------------------------------

void Simulation::check_start(Fiber& fiber, const Ledger& ledger) {
  const std::pair key(fiber.round, fiber.work.microbatch);
  const auto worker = workers_.find(key);
  if (done_.contains(key)) {
    throw Broken("a finished microbatch is claimed again: " + std::to_string(key.second) +
                 describe());
  }
  if (worker != workers_.end() && !shows_death(fiber_of(worker->second))) {
    throw Broken("two living replicas work on one microbatch");
  }
  workers_[key] = fiber.incarnation;
  if (scenario_.kind(fiber.round) == RoundKind::kValues) return;
  ShadowSlot& shadow = shadows_[fiber.work.slot];
  if (shadow.author != 0 && !shows_death(fiber_of(shadow.author))) {
    throw Broken("a slot has two authors");
  }
  if (shadow.live_round == fiber.round) {
    const tree::ReductionTree tree(fiber.microbatch_count);
    const bool superseded = std::any_of(shadows_.begin(), shadows_.end(), [&](const ShadowSlot& s) {
      return &s != &shadow && s.live_round == fiber.round && tree.covers(s.node, shadow.node);
    });
    if (!superseded) throw Broken("a slot is reused that nothing else covers");
  }
  shadow = ShadowSlot{.author = fiber.incarnation, .live_round = 0, .node = {}, .bytes = {}};
  const SlotBudget budget = slot_budget(fiber.microbatch_count, ledger.living_member_count());
  const uint32_t room = budget.owned + (fiber.work.is_stolen ? budget.stolen : 0);
  const bool is_calm = outcome_.deaths + joins_ == 0 && scenario_.absent_rank == UINT32_MAX &&
                       !scenario_.shuffles && scenario_.break_one_in == 0;
  if (is_calm && fiber.work.slot % kSlotsPerSeat >= room) throw Broken("a slot beyond the budget");
}

void Simulation::check_write(const void* word, uint64_t before, uint64_t after) const {
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(word) - arena_.ledger);
  if (goes_back(arena_.layout, offset, before, after)) {
    throw Broken("a word of an older round replaces one of a newer round");
  }
}

void Simulation::note_live(Fiber& fiber) {
  ShadowSlot& shadow = shadows_[fiber.work.slot];
  shadow.author = 0;
  shadow.live_round = fiber.round;
  shadow.node = fiber.work.node;
  std::copy_n(arena_.slot(fiber.work.slot), kValueCount, shadow.bytes.begin());
  fiber.is_working = false;
  done_.insert({fiber.round, fiber.work.microbatch});
}

// -- Deaths ---------------------------------------------------------------------------------------

bool Simulation::is_full_member(const Fiber& fiber) const {
  if (!fiber.is_alive() || !fiber.is_loaded) return false;
  const auto* seats = reinterpret_cast<const Seat*>(arena_.ledger + arena_.layout.seats);
  const Word join = Word::unpack(seats[fiber.rank].join.peek());
  return !fiber.is_joiner ||
         (join.incarnation == fiber.incarnation && join.phase == kAdmittedPhase);
}

Role Simulation::role_of(const Fiber& fiber) const {
  if (!is_full_member(fiber)) return Role::kNewcomer;
  const bool is_lowest = std::none_of(fibers_.begin(), fibers_.end(), [&](const auto& other) {
    return other->rank < fiber.rank && is_full_member(*other);
  });
  return is_lowest ? Role::kLowestMember : Role::kOtherMember;
}

void Simulation::die(Fiber& fiber, bool by_fault, std::optional<Point> point) {
  ++outcome_.deaths;
  const int role = static_cast<int>(role_of(fiber));
  if (point) {
    ++outcome_.deaths_at[role][static_cast<int>(*point)];
  } else {
    ++outcome_.deaths_between_points[role];
  }
  fiber.by_fault = by_fault;
  fiber.shows_at = turn_ + 1 + (scenario_.death_delay == 0 ? 0 : random(scenario_.death_delay));
  if (by_fault) blame(fiber);
  throw Killed{};
}

// Counts the death against the microbatch that the fiber has claimed and not finished, if any.
void Simulation::blame(const Fiber& fiber) {
  const auto* claims =
      reinterpret_cast<const Shared<uint64_t>*>(arena_.ledger + arena_.layout.claims);
  for (uint32_t m = 0; m < scenario_.most_microbatches; ++m) {
    const Word word = Word::unpack(claims[m].peek());
    if (word.incarnation != fiber.incarnation || word.phase != kClaimed) continue;
    if (!done_.contains({word.round, m})) ++faults_[{word.round, m}];
  }
}

void Simulation::maybe_die(Fiber& fiber, Point point) {
  const uint32_t visit = fiber.visits[static_cast<size_t>(point)]++;
  const auto& told = scenario_.kill;
  if (fiber.rank == told.rank && point == told.point && visit == told.visit &&
      !outcome_.killed_as_told && !is_last_with_state(fiber)) {
    outcome_.killed_as_told = true;
    die(fiber, false, point);
  }
  if (point == Point::kLeafDone && fiber.round == 2 && fiber.is_working &&
      fiber.work.microbatch == scenario_.poisoned_microbatch &&
      outcome_.poison_deaths < scenario_.poison_deaths) {
    ++outcome_.poison_deaths;
    die(fiber, scenario_.poison_is_fault, point);
  }
  die_by_chance(fiber, scenario_.death_one_in, point);
}

void Simulation::die_by_chance(Fiber& fiber, uint32_t one_in, std::optional<Point> point) {
  if (one_in == 0 || outcome_.deaths >= scenario_.most_deaths || random(one_in) != 0) return;
  if (scenario_.keeps_survivor && is_last_with_state(fiber)) return;
  die(fiber, scenario_.fault_one_in != 0 && random(scenario_.fault_one_in) == 0, point);
}

// Before an access of a shared word. What a death leaves behind depends on the writes before it
// only, so these are where it comes.
void Simulation::step(Fiber& fiber, bool is_write) {
  if (scenario_.step_one_in == 0) return;
  if (is_write) die_by_chance(fiber, 3 * scenario_.death_one_in, std::nullopt);
  if (random(is_write ? 3 : scenario_.step_one_in) == 0) yield(fiber);
}

bool Simulation::is_last_with_state(const Fiber& fiber) const {
  return std::none_of(fibers_.begin(), fibers_.end(), [&](const auto& other) {
    return other.get() != &fiber && other->is_loaded &&
           (other->is_alive() || other->state == State::kFinished);
  });
}

// -- Scheduling -----------------------------------------------------------------------------------

Simulation::Simulation(const Scenario& scenario)
    : scenario_(scenario),
      expected_(reference(scenario)),
      arena_(scenario),
      shadows_(size_t{scenario.rank_count} * kSlotsPerSeat),
      random_(scenario.seed) {
  for (uint32_t rank = 0; rank < scenario.rank_count; ++rank) {
    add_fiber(rank, rank == scenario.absent_rank);
  }
}

Simulation::~Simulation() {
  for (auto& stack : stacks_) idle_stacks().push_back(std::move(stack));
}

void Simulation::add_fiber(uint32_t rank, bool joins) {
  const auto incarnation = static_cast<uint16_t>(fibers_.size() + 1);
  fibers_.push_back(std::make_unique<Fiber>(*this, rank, incarnation, joins));
  Fiber& fiber = *fibers_.back();
  constexpr uint32_t kSlowness[] = {1, 1, 3, 40};
  fiber.slowness = kSlowness[random(4)];
  if (idle_stacks().empty()) idle_stacks().push_back(std::make_unique<std::byte[]>(kStackBytes));
  stacks_.push_back(std::move(idle_stacks().back()));
  idle_stacks().pop_back();
  shown_.push_back(0);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stacks_.back().get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(&fiber);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(&enter_fiber), 2,
              static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
}

void Simulation::enter_fiber(unsigned low, unsigned high) {
  auto* fiber = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  fiber->simulation.run_fiber(*fiber);
  fiber->simulation.yield(*fiber);  // never comes back
}

void Simulation::run_fiber(Fiber& fiber) {
  try {
    Replica replica(scenario_, expected_, arena_, fiber.rank, fiber.incarnation, fiber.is_joiner,
                    fiber);
    replica.run();
    fiber.state = State::kFinished;
    is_over_ = is_over_ || fiber.is_loaded;
    ++event_;
  } catch (const Killed&) {
    fiber.state = State::kDead;
  } catch (const Failed&) {
    fiber.state = State::kFailed;
  } catch (const std::exception& error) {
    fiber.state = State::kFailed;
    if (outcome_.problem.empty()) outcome_.problem = error.what();
  }
}

void Simulation::yield(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  const bool ends = !fiber.is_alive();
  __sanitizer_start_switch_fiber(ends ? nullptr : &fiber.fake_stack, nullptr, 0);
  swapcontext(&fiber.context, &scheduler_);
  __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#else
  swapcontext(&fiber.context, &scheduler_);
#endif
}

void Simulation::switch_to(Fiber& fiber) {
  fiber.state = State::kReady;
  running = &fiber;
  before_access = [](bool is_write) { running->simulation.step(*running, is_write); };
  after_write = [](const void* word, uint64_t before, uint64_t after) {
    running->simulation.check_write(word, before, after);
  };
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.context.uc_stack.ss_sp, kStackBytes);
  swapcontext(&scheduler_, &fiber.context);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  swapcontext(&scheduler_, &fiber.context);
#endif
  before_access = nullptr;
  after_write = nullptr;
}

// The launcher sees a death and wakes everyone.
void Simulation::show_deaths() {
  for (size_t i = 0; i < fibers_.size(); ++i) {
    if (shown_[i] != 0 || !shows_death(*fibers_[i])) continue;
    shown_[i] = 1;
    ++event_;
  }
}

void Simulation::start_joiners() {
  if (joins_ >= scenario_.most_joins || is_over_) return;
  for (uint32_t rank = 0; rank < scenario_.rank_count; ++rank) {
    const auto last = std::find_if(fibers_.rbegin(), fibers_.rend(),
                                   [rank](const auto& fiber) { return fiber->rank == rank; });
    if (!shows_death(**last) || random(40) != 0) continue;
    ++joins_;
    add_fiber(rank, true);
  }
}

std::vector<Fiber*> Simulation::runnable() {
  std::vector<Fiber*> fibers;
  for (const auto& fiber : fibers_) {
    if (fiber->state == State::kReady ||
        (fiber->state == State::kWaiting && fiber->waits_for != event_)) {
      fibers.push_back(fiber.get());
    }
  }
  return fibers;
}

Fiber& Simulation::choose(const std::vector<Fiber*>& candidates) {
  for (;;) {
    Fiber& fiber = *candidates[random(candidates.size())];
    if (random(fiber.slowness) == 0) return fiber;
  }
}

// Nobody can run. True where time alone changes that: a death that does not show yet.
bool Simulation::wakes_by_time() {
  uint64_t next = UINT64_MAX;
  for (const auto& fiber : fibers_) {
    if (fiber->state == State::kDead && fiber->shows_at > turn_) {
      next = std::min(next, fiber->shows_at);
    }
  }
  if (next == UINT64_MAX) return false;
  turn_ = next;
  return true;
}

bool Simulation::nobody_carries_on() const {
  return std::none_of(fibers_.begin(), fibers_.end(), [](const auto& fiber) {
    return fiber->is_loaded && fiber->state != State::kDead;
  });
}

Outcome Simulation::run() {
  while (outcome_.problem.empty()) {
    ++turn_;
    show_deaths();
    start_joiners();
    if (nobody_carries_on() && turn_ > 1 && fibers_.size() > 0 && outcome_.deaths > 0) {
      const bool started = std::all_of(fibers_.begin(), fibers_.end(), [](const auto& fiber) {
        return fiber->is_loaded || fiber->is_joiner;
      });
      outcome_.is_extinct = started;
      if (started) break;
    }
    const std::vector<Fiber*> candidates = runnable();
    if (candidates.empty()) {
      if (wakes_by_time()) continue;
      const bool any_waits = std::any_of(fibers_.begin(), fibers_.end(),
                                         [](const auto& fiber) { return fiber->is_alive(); });
      if (any_waits) outcome_.problem = "deadlock: " + describe();
      break;
    }
    if (turn_ > kMostTurns) outcome_.problem = "no end: " + describe();
    switch_to(choose(candidates));
  }
  outcome_.turns = turn_;
  if (outcome_.problem.empty()) check_end();
  return outcome_;
}

std::string Simulation::describe() const {
  constexpr const char* kNames[] = {"runs", "waits", "dead", "finished", "failed"};
  std::string text;
  for (const auto& fiber : fibers_) {
    text += "\n  incarnation " + std::to_string(fiber->incarnation) + " of rank " +
            std::to_string(fiber->rank) + " " + kNames[static_cast<int>(fiber->state)] +
            (fiber->is_joiner ? ", joiner" : "") + (fiber->is_loaded ? "" : ", no state") +
            ", last at " + point_name(fiber->last_point) + ", round " +
            std::to_string(fiber->round) +
            (fiber->is_working ? ", works on " + std::to_string(fiber->work.microbatch) : "");
  }
  return text;
}

// Every replica checked its own steps; here: nobody was left behind, and failures have a reason.
void Simulation::check_end() {
  bool any_failed = false, any_finished = false;
  for (const auto& fiber : fibers_) {
    if (fiber->is_loaded && fiber->is_joiner) ++outcome_.loaded_joiners;
    any_failed |= fiber->state == State::kFailed;
    any_finished |= fiber->state == State::kFinished && fiber->is_loaded;
  }
  const auto& head = *reinterpret_cast<const Head*>(arena_.ledger);
  const Word word = Word::unpack(head.commit.load());
  if (any_failed) {
    check_failure();
    if (any_finished) outcome_.problem = "some failed, others finished";
  } else if (!outcome_.is_extinct) {
    if (!any_finished) outcome_.problem = "nobody finished";
    if (word.round != scenario_.round_count || word.phase != kCommittedPhase) {
      outcome_.problem = "not every round was committed";
    }
    for (const auto& [place, count] : faults_) {
      if (count >= 2) outcome_.problem = "two deaths by fault did not end the run";
    }
  }
}

void Simulation::check_failure() {
  const auto& failure = reinterpret_cast<const Head*>(arena_.ledger)->failure;
  outcome_.failure = static_cast<FailureKind>(failure.kind.load());
  outcome_.failed_microbatch = failure.microbatch;
  outcome_.failed_rank = failure.rank;
  outcome_.failed_other_rank = failure.other_rank;
  if (outcome_.failure == FailureKind::kNone) outcome_.problem = "failed without a failure";
  const uint32_t round = failure.round;
  if (outcome_.failure == FailureKind::kUnclaimed &&
      scenario_.kind(round) == RoundKind::kGradient) {
    const auto first = done_.lower_bound({round, 0}), end = done_.lower_bound({round + 1, 0});
    if (std::distance(first, end) == scenario_.microbatch_count(round)) {
      outcome_.problem = "microbatches are said to be left over, but none was";
    }
  }
  if (outcome_.failure == FailureKind::kPoisonousMicrobatch &&
      faults_[{failure.round, failure.microbatch}] != 2) {
    outcome_.problem = "called poisonous without two deaths by fault";
  }
}

}  // namespace

Outcome simulate(const Scenario& scenario) { return Simulation(scenario).run(); }

}  // namespace lockstep::ledger::simulated
