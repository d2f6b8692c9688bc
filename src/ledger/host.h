#pragma once

#include <cstdint>

namespace lockstep::ledger {

/// The named points of a step (ledger.md). A replica that is killed at any of them costs the others
/// nothing but the microbatch in progress; tests and drills kill at each.
enum class Point : uint8_t {
  kClaim,        // a microbatch is claimed, nothing is computed
  kLeafDone,     // its gradient is complete
  kSlotWritten,  // the slot holds the partial, not live yet
  kLive,         // the slot is live, its children are not freed yet
  kChildFreed,   // one child is freed
  kBucketClaimed,
  kBucketReduced,  // the bucket's mean is written, not yet marked
  kCommitClaimed,
  kRecordWritten,  // the step record is written, not yet committed
  kCommitted,
  kApplying,  // between reading the mean and the end of the update
  kApplied,
  kJoinAsked,
  kDonorCopying,
  kJoinerLoaded,
  kAdmitted,
};
inline constexpr int kPointCount = 16;

/// "claim", "leaf-done", ...: the names that drills use.
const char* point_name(Point point);

/// What the ledger needs from outside its memory: who is dead, and a way to wake sleepers. Tests
/// put a scheduler here.
class Host {
 public:
  virtual ~Host() = default;

  /// True once no thread of that process can write any more (its pidfd is readable).
  virtual bool has_ended(uint16_t incarnation) const = 0;

  /// True where the process ended in a way that its own work can cause: an exception, an exit
  /// status other than 0, a fault signal. REQUIRES: has_ended(incarnation).
  virtual bool ended_by_fault(uint16_t incarnation) const = 0;

  /// Something changed that others may wait for.
  virtual void changed() = 0;

  /// The replica is at this point now. A drill may not return.
  virtual void at(Point point) = 0;
};

}  // namespace lockstep::ledger
