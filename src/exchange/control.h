#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/base/hash.h"
#include "src/exchange/event.h"

// The control block: the memory that the launcher and all replicas of a group share from the
// first moment, of fixed size. The launcher makes it (a memfd); replicas inherit the descriptor.
// It says who is alive (ledger.md, "Death is a kernel fact"), wakes sleepers, and carries each
// replica's reports to the launcher. What one wrapped model shares lies in an arena of its own.

namespace lockstep::exchange {

inline constexpr uint64_t kControlMagic = 0x6c6f636b73746570u;  // "lockstep"
inline constexpr uint32_t kControlVersion = 2;
inline constexpr uint32_t kMaxReplicas = 256;     // of one group on one host
inline constexpr uint32_t kMaxProcesses = 65535;  // ever started in one run: 16-bit incarnations
inline constexpr uint32_t kNoProcess = 0;         // incarnations count from 1

enum class ProcessState : uint32_t {
  kUnused = 0,
  kStarted,     // forked by the launcher, the library not reached yet
  kRegistered,  // has called Group::from_environment
  kEnded,       // its pidfd is readable: no thread of it can write any more
};

// One process ever started. The launcher writes `state` (but for kRegistered), `rank`,
// `wait_status`; the process itself writes the rest.
struct ProcessEntry {
  std::atomic<uint32_t> state;       // ProcessState
  std::atomic<uint32_t> rank;        // 0 .. replica_count-1
  std::atomic<int32_t> pid;          // the registered one; a grandchild where a wrapper was started
  std::atomic<int32_t> wait_status;  // as waitpid gives it; valid when kEnded
  std::atomic<uint64_t> step;        // where it is, for the report after its death
  std::atomic<uint32_t> microbatch;  // UINT32_MAX: in none
  std::atomic<uint32_t>
      kill_reason_rank;  // 1 + rank of who asked the launcher to kill it; 0: nobody
  // Updates that averaged, over all models, and a hash of all models' parameters after the newest.
  // For the launcher, who compares them once every process has ended.
  std::atomic<uint64_t> update_count;
  std::atomic<uint64_t> copies_low, copies_high;
};

// How a death counts (ledger.md, "Recovery"): a fault is one that the work itself can cause.
// Exits other than 0, exceptions (SIGABRT) and fault signals are; SIGKILL and SIGTERM are not.
bool is_work_fault(int wait_status);

// One step as one replica saw it, sent to the launcher. Plain data: it crosses processes.
struct StepReport {
  uint64_t step;   // counted from 1 in what users read: the first update is step 1
  uint64_t epoch;  // counted from 0
  double loss, gradient_norm, learning_rate, drift;
  double count;  // denominator of the mean
  uint64_t samples;
  base::Hash128 parameter_hash;
  base::Hash128 state_hash;              // where has_state_hash
  double accuracy, validation_accuracy;  // where has_accuracy: right ones / count
  double validation_loss;                // where has_validation_loss
  uint32_t has_state_hash, has_validation_loss, has_accuracy;
  // Seconds that this replica spent; bytes it read and wrote for the exchange.
  double seconds, compute, wait, reduce, apply, hash;
  uint32_t microbatches, stolen;
  uint64_t bytes_reduced;
  uint32_t member_count;  // replicas that took part in the commit
  uint32_t is_last;       // nothing follows: the replica is done
};
static_assert(std::is_trivially_copyable_v<StepReport>);

// A ring with one writer (a replica) and one reader (the launcher). The writer may die between any
// two instructions: a report counts once `written` says so.
struct ReportRing {
  static constexpr uint32_t kCapacity = 512;

  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  StepReport reports[kCapacity];
};

struct ControlBlock {
  uint64_t magic;
  uint32_t version;
  uint32_t replica_count;
  uint32_t thread_count;  // per microbatch
  uint32_t core_count;    // that the group may use; waits spin only where replicas fit
  uint64_t timeout_ms;    // of every wait for another replica; 0: never
  EventWords event;
  std::atomic<uint32_t> seat[kMaxReplicas];   // [rank] incarnation that holds the rank now
  std::atomic<uint32_t> reporting;            // 1: the launcher reads the rings
  ProcessEntry processes[kMaxProcesses + 1];  // [incarnation]
  ReportRing rings[kMaxReplicas];             // [rank]
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Appends to the ring of `rank`; false when it is full (wait for the event and try again).
bool push_report(ControlBlock& control, uint32_t rank, const StepReport& report);

// Takes the oldest unread report of `rank`; false when there is none.
bool pop_report(ControlBlock& control, uint32_t rank, StepReport& report);

}  // namespace lockstep::exchange
