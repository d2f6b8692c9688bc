#pragma once

#include <string>

#include "src/exchange/control.h"
#include "src/exchange/shared_memory.h"
#include "src/launch/launcher.h"

namespace lockstep::launch {

/// The launcher's hand on the control block. It is sparse: only entries of processes that were
/// started are ever touched.
class GroupControl {
 public:
  explicit GroupControl(const LaunchOptions& options);

  exchange::ControlBlock& block() const { return *block_; }
  exchange::ProcessEntry& entry(uint32_t incarnation) const {
    return block_->processes[incarnation];
  }
  int fd() const { return memory_.get(); }

  /// Gives the seat of `rank` to a process that is about to start.
  void take_seat(uint32_t rank, uint32_t incarnation) const;

  /// Tells all replicas that the process is dead. Nothing that it could write may follow.
  void publish_death(uint32_t rank, uint32_t incarnation, int wait_status) const;

  /// Wakes every replica.
  void notify() const;

  /// Some replica may be waiting for room in its ring.
  bool any_ring_full() const;

 private:
  exchange::Descriptor memory_;
  exchange::Mapping mapping_;
  exchange::ControlBlock* block_;
  uint32_t replica_count_;
};

}  // namespace lockstep::launch
