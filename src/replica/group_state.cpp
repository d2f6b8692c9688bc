#include "src/replica/group_state.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/number.h"
#include "src/launch/worker_environment.h"
#include "src/replica/torch_internals.h"

namespace lockstep {

Group Group::from_environment(GroupOptions options) {
  return Group(internal::GroupState::make(options));
}

uint32_t Group::rank() const { return state_->rank(); }
uint32_t Group::size() const { return state_->size(); }
uint32_t Group::threads() const { return state_->threads(); }

}  // namespace lockstep

namespace lockstep::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kWaitSliceMs = 100;
constexpr uint64_t kSpinNs = 50'000;  // about what a sleep and a wake-up cost

Drill parse_drill(std::string_view text) {
  const auto refuse = [&](const std::string& why) -> Drill {
    throw Error(ErrorCode::kUsage, "drill '" + std::string(text) + "': " + why +
                                       " (expected RANK@STEP or RANK@STEP:POINT, steps from 1)");
  };
  Drill drill;
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return refuse("there is no '@'");
  const size_t colon = text.find(':', at);
  const size_t step_end = colon == std::string_view::npos ? text.size() : colon;
  const auto rank = base::number_from<uint32_t>(text.substr(0, at));
  if (!rank) return refuse("the rank is not a number");
  const auto step = base::number_from<uint64_t>(text.substr(at + 1, step_end - at - 1));
  if (!step || *step == 0) return refuse("the step is not a number from 1");
  drill.rank = *rank;
  drill.step = *step;
  if (colon == std::string_view::npos) return drill;
  const std::string_view name = text.substr(colon + 1);
  std::string known;
  for (int i = 0; i < ledger::kPointCount; ++i) {
    const auto point = static_cast<ledger::Point>(i);
    if (name == ledger::point_name(point)) drill.point = point;
    known += std::string(i == 0 ? "" : ", ") + ledger::point_name(point);
  }
  if (!drill.point) return refuse("unknown point; known are " + known);
  return drill;
}

}  // namespace

std::vector<Drill> parse_drills(const std::string& text) {
  std::vector<Drill> drills;
  for (size_t from = 0; from < text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    drills.push_back(parse_drill(std::string_view(text).substr(from, comma - from)));
    from = comma + 1;
  }
  return drills;
}

std::shared_ptr<GroupState> GroupState::make(const GroupOptions& options) {
  return std::shared_ptr<GroupState>(new GroupState(options));
}

GroupState::GroupState(const GroupOptions& options) {
  // Before the first call of MKL: without it the address of an input decides last bits (rule 10).
  ::setenv("MKL_CBWR", "AUTO", /*overwrite=*/0);
  if (const auto environment = launch::worker_environment_from_environ()) {
    join(*environment);
  } else if (const auto foreign = launch::foreign_launcher()) {
    throw Error(
        ErrorCode::kEnvironment,
        "this process was started by another launcher (" + *foreign +
            "), which lockstep cannot join yet: start the program with `lockstep run -n N -- "
            "PROGRAM`, or unset those variables to run it alone");
  } else {
    make_group_of_one();
  }
  threads_ = options.threads != 0 ? options.threads : control_->thread_count;
  at::set_num_threads(static_cast<int>(threads_));
  make_deterministic();
  event_ = std::make_unique<exchange::Event>(&control_->event, rank_, kSpinNs, has_cores());
  if (const char* drills = ::getenv("LOCKSTEP_KILL")) {
    for (const Drill& drill : parse_drills(drills)) {
      if (drill.rank == rank_) drills_.push_back(drill);
    }
  }
}

void GroupState::join(const launch::WorkerEnvironment& environment) {
  link_ = std::make_unique<launch::ReplicaLink>(environment);
  control_ = &link_->control();
  rank_ = link_->rank();
  incarnation_ = static_cast<uint16_t>(link_->incarnation());
}

void GroupState::make_group_of_one() {
  const uint64_t bytes = exchange::round_to_pages(sizeof(exchange::ControlBlock));
  const auto memory = exchange::make_shared_memory("lockstep-control", bytes);
  own_control_ = exchange::Mapping(memory, 0, bytes, exchange::Mapping::Kind::kShared);
  control_ = reinterpret_cast<exchange::ControlBlock*>(own_control_.data());
  control_->replica_count = 1;
  control_->thread_count = 1;
  control_->core_count = 1;
  control_->seat[0].store(incarnation_);
}

bool GroupState::has_ended(uint16_t incarnation) const {
  const auto& entry = control_->processes[incarnation];
  return entry.state.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(exchange::ProcessState::kEnded);
}

bool GroupState::ended_by_fault(uint16_t incarnation) const {
  return exchange::is_work_fault(control_->processes[incarnation].wait_status.load());
}

void GroupState::at(ledger::Point point) {
  if (drills_.empty()) return;
  for (const Drill& drill : drills_) {
    const bool here = drill.point
                          ? *drill.point == point
                          : point == ledger::Point::kLeafDone || point == ledger::Point::kApplying;
    if (drill.step != step_ || !here) continue;
    if (link_) link_->announce_drill();
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();  // the signal is on its way
  }
}

void GroupState::set_position(uint64_t step, uint32_t microbatch) {
  step_ = step;
  auto& entry = control_->processes[incarnation_];
  entry.step.store(step, std::memory_order_relaxed);
  entry.microbatch.store(microbatch, std::memory_order_relaxed);
}

void GroupState::note_copy(uint32_t model, const base::Hash128& parameter_hash) {
  if (copies_.size() <= model) copies_.resize(model + 1);
  copies_[model] = parameter_hash;
  const base::Hash128 all =
      base::hash_bytes(copies_.data(), copies_.size() * sizeof(base::Hash128));
  auto& entry = control_->processes[incarnation_];
  entry.copies_low.store(all.low, std::memory_order_relaxed);
  entry.copies_high.store(all.high, std::memory_order_relaxed);
  entry.update_count.fetch_add(1, std::memory_order_relaxed);
}

void GroupState::report(const exchange::StepReport& report) {
  if (control_->reporting.load(std::memory_order_relaxed) == 0) return;
  wait(
      "the launcher to read the reports",
      [&] { return exchange::push_report(*control_, rank_, report); },
      [] { return std::vector<uint32_t>{}; });
}

std::vector<uint32_t> GroupState::living_ranks() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < control_->replica_count; ++rank) {
    const auto incarnation = static_cast<uint16_t>(control_->seat[rank].load());
    if (incarnation != exchange::kNoProcess && !has_ended(incarnation)) ranks.push_back(rank);
  }
  return ranks;
}

exchange::Descriptor GroupState::arena(uint32_t index, uint64_t size_bytes,
                                       const std::function<void(exchange::Descriptor&)>& prepare) {
  const std::string name = "lockstep-arena-" + std::to_string(index);
  const auto make = [&] {
    exchange::Descriptor memory = exchange::make_shared_memory(name, size_bytes);
    prepare(memory);
    return memory;
  };
  if (!link_) return make();
  const auto started = Clock::now();
  for (;;) {
    if (living_ranks().front() == rank_) {
      exchange::Descriptor memory = make();
      if (link_->offer_arena(index, size_bytes, memory)) return memory;
    }
    auto arena = link_->request_arena(index, std::chrono::milliseconds(200));
    if (arena) return std::move(arena->memory);
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started);
    if (control_->timeout_ms != 0 && static_cast<uint64_t>(waited.count()) > control_->timeout_ms) {
      throw Error(ErrorCode::kPeer, "rank " + std::to_string(rank_) + " waited " +
                                        std::to_string(waited.count() / 1000) + " s for rank " +
                                        std::to_string(living_ranks().front()) + " to wrap model " +
                                        std::to_string(index) +
                                        ": do all replicas construct the same models?");
    }
  }
}

void GroupState::wait(const char* what, const std::function<bool()>& ready,
                      const std::function<std::vector<uint32_t>()>& awaited) {
  const auto started = Clock::now();
  const auto timeout = std::chrono::milliseconds(control_->timeout_ms);
  auto deadline = started + timeout;
  const auto look_at_clock = [&] {
    if (control_->timeout_ms == 0 || Clock::now() <= deadline) return;
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started).count();
    const std::vector<uint32_t> ranks = awaited();
    if (ranks.empty() || !link_) {
      throw Error(ErrorCode::kPeer, "rank " + std::to_string(rank_) + " waited " +
                                        std::to_string(seconds) + " s for " + what +
                                        " and there is nobody to wait for");
    }
    for (uint32_t rank : ranks) {
      link_->ask_to_kill(control_->seat[rank].load(), static_cast<uint64_t>(seconds));
    }
    deadline = Clock::now() + timeout;
  };
  event_->wait_until(ready, kWaitSliceMs, look_at_clock);
}

}  // namespace lockstep::internal
