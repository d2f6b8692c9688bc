#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/exchange/control.h"
#include "src/report/records.h"

namespace lockstep::cli {

struct StepLogOptions {
  std::string folder;              // metrics.jsonl and timings.jsonl are written there
  uint64_t last_step = 0;          // its line waits for the hash of the whole state
  uint64_t tokens_per_sample = 0;  // 0: samples have no tokens
  bool averaging = true;           // off: the copies differ, and rank 0's figures are written
};

struct LoggedStep {
  report::StepMetrics metrics;
  report::StepTimings timings;
};

/// The reports of all replicas, put together: one line per step in each file, written when every
/// living replica is through with the step. Replicas that disagree about a step end the run.
class StepLog {
 public:
  explicit StepLog(const StepLogOptions& options);

  /// Takes what has arrived; returns the steps that are complete now. Throws Error(kDiverged) where
  /// two replicas report different figures, Error(kEnvironment) where a file cannot be written.
  std::vector<LoggedStep> collect(exchange::ControlBlock& control);

  uint64_t step_count() const { return step_count_; }        // written so far
  const report::StepMetrics& last() const { return last_; }  // REQUIRES: step_count() > 0
  bool is_complete() const { return is_complete_; }          // the last step's line is written
  /// Of the steps but the first, which warms caches up; of all where there is one only.
  double samples_per_second() const;
  double tokens_per_second() const;

 private:
  struct Pending {
    exchange::StepReport report{};  // the first one that came, with what others add
    uint32_t rank = 0;              // whose
    report::StepTimings timings;
    bool has_end = false;  // a replica that finished said what the whole state is
  };

  void take(uint32_t rank, const exchange::StepReport& report);
  void check_agreement(const Pending& pending, uint32_t rank, const exchange::StepReport& report);
  bool all_are_through(const exchange::ControlBlock& control, uint64_t step) const;
  LoggedStep write(const exchange::ControlBlock& control, uint64_t step, const Pending& pending);

  struct Disagreement {
    uint64_t step = 0;
    std::string text;
  };

  StepLogOptions options_;
  base::AppendFile metrics_;
  base::AppendFile timings_;
  std::map<uint64_t, Pending> pending_;       // by step
  std::vector<uint64_t> through_;             // [rank] the last step it reported
  std::vector<bool> ended_;                   // [rank] has reported its end
  std::optional<Disagreement> disagreement_;  // about the earliest step
  uint64_t step_count_ = 0;
  report::StepMetrics last_;
  bool is_complete_ = false;
  double seconds_ = 0;
  double samples_ = 0;
  double tokens_ = 0;
};

}  // namespace lockstep::cli
