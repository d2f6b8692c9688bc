#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "src/exchange/channel.h"
#include "src/exchange/control.h"
#include "src/exchange/shared_memory.h"
#include "src/launch/worker_environment.h"

namespace lockstep::launch {

/// A replica's side of the launcher. One per process, made once, before anything that others wait
/// for: from then on the process is a registered member and dies with the launcher. The kernel
/// sends it SIGKILL when the lifeline breaks: no thread of ours runs in the user's program, and a
/// stopped replica dies too. All functions may be called from any thread.
class ReplicaLink {
 public:
  /// Registers this process. Throws Error(kEnvironment) where launcher and program do not fit
  /// together, Error(kPeer) where the launcher refuses or does not answer within `deadline`.
  explicit ReplicaLink(const WorkerEnvironment& environment,
                       std::chrono::milliseconds deadline = std::chrono::seconds(30));

  ReplicaLink(const ReplicaLink&) = delete;
  ReplicaLink& operator=(const ReplicaLink&) = delete;

  exchange::ControlBlock& control() const { return *control_; }
  uint32_t rank() const { return rank_; }
  uint32_t incarnation() const { return incarnation_; }

  /// This process's entry in the control block: keep its `step` and `microbatch` up to date.
  exchange::ProcessEntry& entry() const { return control_->processes[incarnation_]; }

  /// Hands an arena to the launcher, which keeps it for all who ask, now or later. `memory` is a
  /// memfd sealed against shrinking, of at least `size_bytes`; it stays the caller's. False:
  /// another replica's arena has that index already, use request_arena(). Throws Error(kPeer).
  [[nodiscard]] bool offer_arena(uint32_t index, uint64_t size_bytes,
                                 const exchange::Descriptor& memory);

  struct Arena {
    exchange::Descriptor memory;
    uint64_t size_bytes = 0;
  };

  /// The arena of that index, as soon as somebody has offered it. Empty: not within `deadline`
  /// (its maker may have died: look again who makes it). Throws Error(kPeer) if the launcher is
  /// gone.
  std::optional<Arena> request_arena(uint32_t index, std::chrono::milliseconds deadline);

  /// Asks the launcher to name and SIGKILL the process that has been awaited for `seconds`.
  void ask_to_kill(uint32_t incarnation, uint64_t seconds);

  /// Marks the death that this process is about to die as a drill's, for the launcher's report.
  void announce_drill() const;

 private:
  using Answer = std::optional<exchange::ReceivedMessage>;

  void map_control();
  void arm_lifeline() const;
  void join(std::chrono::milliseconds deadline);
  Answer ask(const exchange::Message& question, int descriptor, std::chrono::milliseconds deadline);
  Answer await_answer(const exchange::Message& question, std::chrono::milliseconds deadline);

  uint32_t rank_;
  uint32_t incarnation_;
  exchange::Descriptor control_memory_;
  exchange::Descriptor socket_;
  exchange::Descriptor lifeline_;
  exchange::Mapping mapping_;
  exchange::ControlBlock* control_ = nullptr;
  std::mutex mutex_;  // one question at a time
};

}  // namespace lockstep::launch
