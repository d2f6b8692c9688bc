#include "src/cli/step_log.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/report/json_number.h"

namespace lockstep::cli {
namespace {

using exchange::ProcessState;
using exchange::StepReport;
using report::json_number;
using report::same_bits;

bool has_ended(const exchange::ProcessEntry& entry) {
  return entry.state == static_cast<uint32_t>(ProcessState::kEnded);
}

}  // namespace

StepLog::StepLog(const StepLogOptions& options)
    : options_(options),
      metrics_(options.folder + "/metrics.jsonl", base::AppendFile::Start::kEmpty),
      timings_(options.folder + "/timings.jsonl", base::AppendFile::Start::kEmpty),
      through_(exchange::kMaxReplicas, 0),
      ended_(exchange::kMaxReplicas, false) {}

std::vector<LoggedStep> StepLog::collect(exchange::ControlBlock& control) {
  // Who is dead is looked at first: what a replica sent before its death is then in its ring.
  std::vector<bool> alive;  // [rank]
  for (uint32_t rank = 0; rank < control.replica_count; ++rank) {
    alive.push_back(!has_ended(control.processes[control.seat[rank]]));
  }
  StepReport report;
  for (uint32_t rank = 0; rank < control.replica_count; ++rank) {
    while (exchange::pop_report(control, rank, report)) take(rank, report);
    if (!alive[rank]) {
      through_[rank] = UINT64_MAX;
      ended_[rank] = true;
    }
  }
  std::vector<LoggedStep> complete;
  const uint64_t end = disagreement_ ? disagreement_->step : UINT64_MAX;
  while (!pending_.empty() && pending_.begin()->first < end &&
         all_are_through(control, pending_.begin()->first)) {
    const auto& [step, pending] = *pending_.begin();
    complete.push_back(write(control, step, pending));
    pending_.erase(pending_.begin());
  }
  if (disagreement_) {
    throw Error(
        ErrorCode::kDiverged,
        fmt::format("{}. Nothing from this step on can be trusted; metrics.jsonl holds the {} "
                    "{} before it.",
                    disagreement_->text, step_count_, step_count_ == 1 ? "step" : "steps"));
  }
  return complete;
}

void StepLog::take(uint32_t rank, const StepReport& report) {
  if (report.is_last != 0 && report.step != options_.last_step) {
    ended_[rank] = true;  // it ends early; its exit tells why
    return;
  }
  if (report.step <= last_.step || report.step > options_.last_step) {
    throw Error(
        ErrorCode::kInternal,
        fmt::format("rank {} reports step {}, but step {} of {} is the last that is written: "
                    "does every replica see the same data and options?",
                    rank, report.step, last_.step, options_.last_step));
  }
  through_[rank] = std::max(through_[rank], report.step);
  auto [found, is_first] = pending_.try_emplace(report.step);
  Pending& pending = found->second;
  if (is_first) {
    pending.report = report;
    pending.rank = rank;
    pending.timings.step = report.step;
  } else if (options_.averaging) {
    check_agreement(pending, rank, report);
  } else if (rank < pending.rank) {
    pending.report = report;
    pending.rank = rank;
    pending.has_end = false;
  }
  if (report.is_last != 0) {
    // The step was reported before, and its times with it: this says what came after it.
    ended_[rank] = true;
    if (options_.averaging || rank == pending.rank) {
      pending.report.has_state_hash = report.has_state_hash;
      pending.report.state_hash = report.state_hash;
      pending.report.has_validation_loss = report.has_validation_loss;
      pending.report.validation_loss = report.validation_loss;
      pending.report.validation_accuracy = report.validation_accuracy;
      pending.has_end = true;
    }
    return;
  }
  report::StepTimings& timings = pending.timings;
  timings.seconds = std::max(timings.seconds, report.seconds);
  timings.compute = std::max(timings.compute, report.compute);
  timings.wait = std::max(timings.wait, report.wait);
  timings.reduce = std::max(timings.reduce, report.reduce);
  timings.apply = std::max(timings.apply, report.apply);
  timings.hash = std::max(timings.hash, report.hash);
  timings.stolen += report.stolen;
  timings.bytes_reduced += report.bytes_reduced;
}

// The replicas compare their copies themselves; this guards what they report.
void StepLog::check_agreement(const Pending& pending, uint32_t rank, const StepReport& report) {
  const StepReport& other = pending.report;
  if (disagreement_ && disagreement_->step <= report.step) return;
  const auto note = [&](const char* what, const std::string& left, const std::string& right) {
    if (disagreement_ && disagreement_->step == report.step) return;  // the first one is the cause
    disagreement_ = {
        report.step,
        fmt::format("step {}: the replicas disagree about the {}: {} on rank {}, {} on "
                    "rank {}",
                    report.step, what, left, pending.rank, right, rank)};
  };
  const auto compare = [&](const char* what, double left, double right) {
    if (!same_bits(left, right)) note(what, json_number(left), json_number(right));
  };
  compare("loss", other.loss, report.loss);
  compare("accuracy", other.accuracy, report.accuracy);
  compare("gradient norm", other.gradient_norm, report.gradient_norm);
  compare("learning rate", other.learning_rate, report.learning_rate);
  compare("drift", other.drift, report.drift);
  if (other.has_validation_loss != 0 && report.has_validation_loss != 0) {
    compare("validation loss", other.validation_loss, report.validation_loss);
    compare("validation accuracy", other.validation_accuracy, report.validation_accuracy);
  }
  if (other.parameter_hash != report.parameter_hash) {
    note("parameters", base::to_hex(other.parameter_hash), base::to_hex(report.parameter_hash));
  }
  if (other.has_state_hash != 0 && report.has_state_hash != 0 &&
      other.state_hash != report.state_hash) {
    note("state", base::to_hex(other.state_hash), base::to_hex(report.state_hash));
  }
}

bool StepLog::all_are_through(const exchange::ControlBlock& control, uint64_t step) const {
  for (uint32_t rank = 0; rank < control.replica_count; ++rank) {
    if (through_[rank] < step) return false;
    if (step == options_.last_step && !ended_[rank]) return false;
  }
  return true;
}

LoggedStep StepLog::write(const exchange::ControlBlock& control, uint64_t step,
                          const Pending& pending) {
  const StepReport& report = pending.report;
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.epoch = report.epoch;
  metrics.loss = report.loss;
  if (report.has_accuracy != 0) metrics.accuracy = report.accuracy;
  metrics.gradient_norm = report.gradient_norm;
  metrics.learning_rate = report.learning_rate;
  metrics.parameter_hash = base::to_hex(report.parameter_hash);
  metrics.drift = report.drift;
  if (report.has_state_hash != 0) metrics.state_hash = base::to_hex(report.state_hash);
  if (report.has_validation_loss != 0) {
    metrics.validation_loss = report.validation_loss;
    if (report.has_accuracy != 0) metrics.validation_accuracy = report.validation_accuracy;
  }
  metrics_.append_line(report::metrics_line(metrics));

  report::StepTimings timings = pending.timings;
  const auto samples = static_cast<double>(report.samples);
  const double tokens = samples * static_cast<double>(options_.tokens_per_sample);
  if (timings.seconds > 0) {
    timings.samples_per_second = samples / timings.seconds;
    timings.tokens_per_second = tokens / timings.seconds;
  }
  for (uint32_t rank = 0; rank < control.replica_count; ++rank) {
    const exchange::ProcessEntry& entry = control.processes[control.seat[rank]];
    if (has_ended(entry) && entry.wait_status != 0 && entry.step == step) ++timings.deaths;
  }
  timings_.append_line(report::timings_line(timings));

  if (step_count_ == 1) seconds_ = samples_ = tokens_ = 0;
  seconds_ += timings.seconds;
  samples_ += samples;
  tokens_ += tokens;
  ++step_count_;
  last_ = metrics;
  is_complete_ = step == options_.last_step && pending.has_end;
  return {std::move(metrics), timings};
}

double StepLog::samples_per_second() const { return seconds_ > 0 ? samples_ / seconds_ : 0; }
double StepLog::tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

}  // namespace lockstep::cli
