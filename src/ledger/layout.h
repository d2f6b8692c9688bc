#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(LOCKSTEP_STEPPED)
#include "src/ledger/stepped.h"
#endif

// The ledger's memory, byte for byte. All of it is zero at first, and zero means "round 0, free".

namespace lockstep::ledger {

/// A word that replicas share.
#if defined(LOCKSTEP_STEPPED)
template <typename T>
using Shared = Stepped<T>;
#else
template <typename T>
using Shared = std::atomic<T>;
#endif

inline constexpr uint32_t kMostReplicas = 256;
inline constexpr uint32_t kMostMicrobatches = 65'535;
inline constexpr uint32_t kMetricCount = 8;  // user metrics of a microbatch, beside loss and count
inline constexpr uint32_t kSlotsPerSeat =
    64;  // room; how many are ever touched follows from K and N

enum ClaimPhase : uint8_t { kFree = 0, kClaimed = 1, kDone = 2 };
enum SlotPhase : uint8_t { kSlotFree = 0, kWriting = 1, kLiveSlot = 2 };
enum BucketPhase : uint8_t { kBucketFree = 0, kReducing = 1, kReduced = 2 };
enum CommitPhase : uint8_t { kNotCommitted = 0, kCommitting = 1, kCommittedPhase = 2 };
enum JoinPhase : uint8_t { kNoJoin = 0, kAsked = 1, kDonated = 2, kAdmittedPhase = 3 };

/// What one microbatch reports, in memory that several processes may write with equal bits.
struct MicrobatchRecord {
  Shared<double> loss;     // sum over its samples, not a mean
  Shared<double> count;    // what the step divides by, this microbatch's part
  Shared<uint64_t> flags;  // bit 0: a backward was run
  Shared<uint64_t> fault;  // Word: who died of a fault while computing it, for the report
  Shared<double> metrics[kMetricCount];
};

struct SlotHeader {
  // Word: writing or live, by whom. `attempts` counts how often the slot was taken, so that a word
  // that reads the same twice says that nothing happened in between.
  Shared<uint64_t> word;
  Shared<uint32_t> node_level;
  Shared<uint32_t> node_index;
};

/// The state of one rank. A seat is worked by its member, or by who adopted it after a death.
struct alignas(64) Seat {
  Shared<uint64_t> run;               // Run
  Shared<uint64_t> stealing;          // Run that is on its way from another seat to this one
  Shared<uint64_t> owner;             // Word: who adopted the seat in this round
  Shared<uint32_t> arrived;           // last round whose microbatch loop this member has left
  Shared<uint32_t> applied;           // last round whose mean this member's copy holds
  Shared<uint64_t> applied_hash_low;  // of the copy's parameters after `applied`
  Shared<uint64_t> applied_hash_high;
  Shared<uint64_t> join;   // Word: round = the commit that took the joiner in
  Shared<uint64_t> donor;  // Word: who copies its state for the joiner, of which round
};

inline constexpr uint32_t kJoiningFlag = 1u << 16;  // in CommitRecord::members

/// What a commit says. Two of them, used by the parity of the round.
struct CommitRecord {
  uint32_t round;
  uint32_t member_count;
  double loss;  // sum over the samples of the batch
  double count;
  double square;  // sum of squares of the mean: the gradient norm squared
  double metrics[kMetricCount];
  uint32_t members[kMostReplicas];  // [rank] incarnation of the next round's member, or 0
};

enum class FailureKind : uint32_t {
  kNone = 0,
  kPoisonousMicrobatch,  // two replicas died of faults while computing it
  kUnclaimed,            // everyone left the loop, but microbatches were left over
  kDiverged,             // the copies' parameters differ after the same step
  kOther,                // a replica reported an error of its own in `text`
};

/// Set once; every replica throws on seeing it.
struct Failure {
  Shared<uint32_t> claimed;  // incarnation of who fills the fields
  Shared<uint32_t> kind;     // FailureKind; nonzero once the fields below are complete
  uint32_t round, microbatch, rank, other_rank;
  char text[1000];
};

struct Head {
  Shared<uint64_t> commit;   // Word
  Shared<uint64_t> orphans;  // Word: who alone takes microbatches that are in no run
  Failure failure;
  CommitRecord records[2];  // [round % 2]
};

/// Sizes that all replicas must agree on.
struct Shape {
  uint32_t rank_count = 1;
  uint32_t bucket_count = 1;
  uint32_t touched_words = 1;  // 64 parameters and buffers each
};

/// Where each part lies.
struct Layout {
  explicit Layout(const Shape& shape);

  uint64_t seats, claims, records, buckets, slots, touched, step_touched, size_bytes;
};

}  // namespace lockstep::ledger
