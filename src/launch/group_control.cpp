#include "src/launch/group_control.h"

#include "src/exchange/event.h"

namespace lockstep::launch {

using exchange::ControlBlock;
using exchange::ProcessEntry;
using exchange::ProcessState;

GroupControl::GroupControl(const LaunchOptions& options)
    : memory_(exchange::make_shared_memory("lockstep-control", sizeof(ControlBlock))),
      mapping_(memory_, 0, sizeof(ControlBlock), exchange::Mapping::Kind::kShared),
      block_(reinterpret_cast<ControlBlock*>(mapping_.data())),
      replica_count_(options.replica_count) {
  block_->version = exchange::kControlVersion;
  block_->replica_count = options.replica_count;
  block_->thread_count = options.thread_count;
  block_->core_count = options.core_count;
  block_->timeout_ms = static_cast<uint64_t>(options.timeout.count());
  block_->reporting = options.on_tick ? 1 : 0;
  block_->magic = exchange::kControlMagic;
}

void GroupControl::take_seat(uint32_t rank, uint32_t incarnation) const {
  ProcessEntry& process = entry(incarnation);
  process.rank = rank;
  process.microbatch = UINT32_MAX;
  process.state.store(static_cast<uint32_t>(ProcessState::kStarted), std::memory_order_release);
  block_->seat[rank].store(incarnation, std::memory_order_release);
}

void GroupControl::publish_death(uint32_t rank, uint32_t incarnation, int wait_status) const {
  ProcessEntry& process = entry(incarnation);
  process.wait_status.store(wait_status, std::memory_order_relaxed);
  // Last: who sees kEnded sees the status, and may take over what the process held.
  process.state.store(static_cast<uint32_t>(ProcessState::kEnded), std::memory_order_release);
  exchange::clear_sleeper(block_->event, rank);
  notify();
}

void GroupControl::notify() const { exchange::Event(&block_->event, 0, 0).notify(); }

bool GroupControl::any_ring_full() const {
  for (uint32_t rank = 0; rank < replica_count_; ++rank) {
    const exchange::ReportRing& ring = block_->rings[rank];
    if (ring.written - ring.read >= exchange::ReportRing::kCapacity) return true;
  }
  return false;
}

}  // namespace lockstep::launch
