#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/group.h"
#include "src/exchange/control.h"
#include "src/exchange/event.h"
#include "src/exchange/shared_memory.h"
#include "src/launch/replica_link.h"
#include "src/ledger/host.h"
#include "src/ledger/ledger.h"

namespace lockstep::internal {

/// `--kill RANK@STEP[:POINT]`: this process kills itself there, to show that nothing is lost.
struct Drill {
  uint32_t rank = 0;
  uint64_t step = 0;
  std::optional<ledger::Point> point;  // none: at the end of a microbatch, or while applying
};

/// Parses "1@3,2@5:live". Throws Error(kUsage) naming what is wrong.
std::vector<Drill> parse_drills(const std::string& text);

/// What a process shares with its launcher and the other replicas: the control block, liveness, the
/// event, arenas. One per process.
class GroupState : public ledger::Host {
 public:
  static std::shared_ptr<GroupState> make(const GroupOptions& options);

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return control_->replica_count; }
  uint32_t threads() const { return threads_; }
  uint16_t incarnation() const { return incarnation_; }
  exchange::ControlBlock& control() { return *control_; }
  exchange::Event& event() { return *event_; }

  /// Numbers the models wrapped in this process: every replica wraps them in the same order.
  uint32_t next_model() { return model_count_++; }

  /// The arena with this index and size: made by the lowest living rank, kept by the launcher.
  /// `prepare` runs on fresh memory before anyone else can see it.
  exchange::Descriptor arena(uint32_t index, uint64_t size_bytes,
                             const std::function<void(exchange::Descriptor&)>& prepare);

  /// Waits until `ready` is true, for `what`. After the group's timeout the replicas that `awaited`
  /// names are reported to the launcher, which kills them; their deaths wake this wait.
  void wait(const char* what, const std::function<bool()>& ready,
            const std::function<std::vector<uint32_t>()>& awaited);

  /// Hands a report to the launcher, if it reads them; waits while its ring is full.
  void report(const exchange::StepReport& report);

  /// The ranks whose seat is held by a living process.
  std::vector<uint32_t> living_ranks() const;

  /// Where this replica is, for reports after its death: step counted from 1, 0 for none.
  void set_position(uint64_t step, uint32_t microbatch);

  /// Whether every replica can have a core of its own.
  bool has_cores() const { return control_->replica_count <= control_->core_count; }

  /// What this replica's copy of a model is after its newest update, for the launcher: it compares
  /// the replicas when all have ended.
  void note_copy(uint32_t model, const base::Hash128& parameter_hash);

  /// Whether a loop over microbatches is open in this process, and of which model: collective calls
  /// inside it are refused.
  const void* open_loop = nullptr;

  // ledger::Host
  bool has_ended(uint16_t incarnation) const override;
  bool ended_by_fault(uint16_t incarnation) const override;
  void changed() override { event_->notify(); }
  void at(ledger::Point point) override;

 private:
  explicit GroupState(const GroupOptions& options);

  void join(const launch::WorkerEnvironment& environment);
  void make_group_of_one();

  std::unique_ptr<launch::ReplicaLink> link_;  // none: alone
  exchange::Mapping own_control_;              // alone
  exchange::ControlBlock* control_ = nullptr;
  std::unique_ptr<exchange::Event> event_;
  uint32_t rank_ = 0;
  uint16_t incarnation_ = 1;
  uint32_t threads_ = 1;
  uint32_t model_count_ = 0;
  uint64_t step_ = 0;
  std::vector<base::Hash128> copies_;  // [model] after its newest update
  std::vector<Drill> drills_;          // of this rank
};

}  // namespace lockstep::internal
