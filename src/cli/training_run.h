#pragma once

#include <functional>
#include <string>

#include "src/cli/console.h"
#include "src/cli/step_log.h"
#include "src/launch/launcher.h"
#include "src/launch/pinning.h"
#include "src/train/preparation.h"

namespace lockstep::cli {

/// How a run of `lockstep train` ended.
struct TrainingOutcome {
  launch::LaunchResult launch;
  uint64_t step_count = 0;   // written to metrics.jsonl
  bool is_complete = false;  // all of them
  report::StepMetrics last;  // where step_count > 0
  double samples_per_second = 0;
  double tokens_per_second = 0;
  std::string problem;  // found by the launcher; else empty
  int exit_status() const;
  std::string failure() const;  // what to print last; REQUIRES: exit_status() is not 0
};

/// Starts the replicas, writes the files of the run to options.out (metrics.jsonl, timings.jsonl,
/// result.json), shows progress on the console, and returns when no replica is left. What
/// goes wrong after the start is told by the outcome. Throws Error(kEnvironment) before it.
TrainingOutcome run_training(const train::PreparedTraining& training,
                             const launch::Pinning& pinning, Console& console);

/// The cores of the replicas. Throws Error(kUsage).
launch::Pinning pinning_of(const train::TrainOptions& options);

/// The file beside this program that the replicas are started from.
std::string worker_path();

/// The path of this program as somebody would type it: "lockstep" where PATH leads to it.
std::string program_name();

}  // namespace lockstep::cli
