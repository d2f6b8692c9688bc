#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The lines of metrics.jsonl and timings.jsonl. The writers give one line without its line end; the
// readers are strict: they throw Error(kInput) with file and line for anything that we do not
// write.

namespace lockstep::report {

/// What the promise covers, one step of metrics.jsonl: equal recipes give equal bytes, so nothing
/// that depends on time, replicas or machine belongs here. Keys are written in this order.
struct StepMetrics {
  uint64_t step = 0;
  uint64_t epoch = 0;
  double loss = 0;
  std::optional<double> accuracy;  // of models with classes: 0 to 1
  double gradient_norm = 0;
  double learning_rate = 0;
  std::string parameter_hash;  // 32 lower-case hexadecimal digits
  double drift = 0;
  std::optional<std::string> state_hash;  // likewise
  std::optional<double> validation_loss;
  std::optional<double> validation_accuracy;
};

/// Everything else about a step, one line of timings.jsonl. In the file `seconds` is the key
/// "step_seconds", and the five parts are the object "seconds".
struct StepTimings {
  uint64_t step = 0;
  double seconds = 0;  // the whole step
  double compute = 0;  // these five: seconds, the maximum over the replicas
  double wait = 0;
  double reduce = 0;
  double apply = 0;
  double hash = 0;
  double samples_per_second = 0;
  double tokens_per_second = 0;  // 0 where samples have no tokens
  uint32_t stolen = 0;           // microbatches computed by another replica than planned
  uint32_t deaths = 0;           // in this step
  uint32_t replacements = 0;     // members taken in at the end of this step
  uint64_t bytes_reduced = 0;    // read and written by the reduction on this host
  uint64_t bytes_sent = 0;       // to other hosts
};

std::string metrics_line(const StepMetrics& metrics);
std::string timings_line(const StepTimings& timings);

/// `file` and `line_number` (from 1) are for the message.
StepMetrics parse_metrics_line(std::string_view line, const std::string& file,
                               uint64_t line_number);
StepTimings parse_timings_line(std::string_view line, const std::string& file,
                               uint64_t line_number);

/// What to do with a last line that has no line end: the writer was killed, or is still writing.
enum class TornLine { kRefuse, kIgnore };

/// Whole files. The steps of metrics.jsonl must follow each other without a gap; those of
/// timings.jsonl must rise.
std::vector<StepMetrics> read_metrics(const std::string& path, TornLine torn = TornLine::kRefuse);
std::vector<StepTimings> read_timings(const std::string& path, TornLine torn = TornLine::kRefuse);

}  // namespace lockstep::report
