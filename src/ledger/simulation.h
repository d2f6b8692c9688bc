#pragma once

#include <cstdint>
#include <string>

#include "src/ledger/simulated_replica.h"

// Tests only: all replicas of a run as fibers on one thread. A seeded scheduler picks who runs next
// at every named point, change, wait, question about a death and, where the scenario says so, at
// accesses of shared words; a seed replays exactly. A death is a fiber that never runs again; the
// others learn of it at once or some turns later.

namespace lockstep::ledger::simulated {

/// What a replica was when it died.
enum class Role {
  kLowestMember,  // of the full members that live: copies its state for joiners
  kOtherMember,
  kNewcomer,  // asks, loads or watches
};
inline constexpr int kRoleCount = 3;

struct Outcome {
  std::string problem;                       // a claim that did not hold, a hang; empty: none
  FailureKind failure = FailureKind::kNone;  // what every survivor saw
  uint32_t failed_microbatch = 0;
  uint32_t failed_rank = 0, failed_other_rank = 0;
  bool is_extinct = false;  // nobody with a state was left
  uint32_t deaths = 0;
  uint32_t loaded_joiners = 0;
  uint32_t poison_deaths = 0;
  uint32_t deaths_at[kRoleCount][kPointCount] = {};
  uint32_t deaths_between_points[kRoleCount] = {};
  bool killed_as_told = false;  // Scenario::kill took place
  uint64_t turns = 0;
};

Outcome simulate(const Scenario& scenario);

}  // namespace lockstep::ledger::simulated
