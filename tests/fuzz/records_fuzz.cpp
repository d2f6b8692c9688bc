#include <algorithm>
#include <bit>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/report/records.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  report::StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 0.1;
  metrics.parameter_hash = std::string(32, 'a');
  report::StepMetrics more = metrics;
  more.accuracy = 0.5;
  more.state_hash = metrics.parameter_hash;
  more.validation_loss = 1e300 * 1e300;
  more.validation_accuracy = 1;
  return {
      report::metrics_line(metrics), report::metrics_line(more),
      report::timings_line(report::StepTimings{}),
      // Not by the writer: a field that it forgets would be missing in its seeds too.
      R"({"step":3,"epoch":0,"loss":0.1,"accuracy":0.5,"gradient_norm":-0.0,)"
      R"("learning_rate":1e-3,"parameter_hash":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","drift":"NaN",)"
      R"("state_hash":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","validation_loss":"Infinity",)"
      R"("validation_accuracy":1})"};
}

namespace {

bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}

// By names, so that a new field has to be thought of here.
bool same(const report::StepMetrics& a, const report::StepMetrics& b) {
  const auto& [step, epoch, loss, accuracy, gradient_norm, learning_rate, parameter_hash, drift,
               state_hash, validation_loss, validation_accuracy] = a;
  return step == b.step && epoch == b.epoch && same(loss, b.loss) && same(accuracy, b.accuracy) &&
         same(gradient_norm, b.gradient_norm) && same(learning_rate, b.learning_rate) &&
         parameter_hash == b.parameter_hash && same(drift, b.drift) && state_hash == b.state_hash &&
         same(validation_loss, b.validation_loss) &&
         same(validation_accuracy, b.validation_accuracy);
}

bool same(const report::StepTimings& a, const report::StepTimings& b) {
  const auto& [step, seconds, compute, wait, reduce, apply, hash, samples_per_second,
               tokens_per_second, stolen, deaths, replacements, bytes_reduced, bytes_sent] = a;
  return step == b.step && same(seconds, b.seconds) && same(compute, b.compute) &&
         same(wait, b.wait) && same(reduce, b.reduce) && same(apply, b.apply) &&
         same(hash, b.hash) && same(samples_per_second, b.samples_per_second) &&
         same(tokens_per_second, b.tokens_per_second) && stolen == b.stolen && deaths == b.deaths &&
         replacements == b.replacements && bytes_reduced == b.bytes_reduced &&
         bytes_sent == b.bytes_sent;
}

// A line of ours that is refused is a finding, unlike the Error of the first reading.
template <typename Record>
void check_round_trip(const Record& record, std::string (*write)(const Record&),
                      Record (*parse)(std::string_view, const std::string&, uint64_t)) {
  const std::string line = write(record);
  std::optional<Record> again;
  try {
    again = parse(line, "f", 1);
  } catch (const Error&) {
  }
  LOCKSTEP_CHECK(again && same(record, *again), line, again ? write(*again) : "refused");
}

}  // namespace
}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view line = fuzz::text_of(data, size);
  try {
    fuzz::check_round_trip(report::parse_metrics_line(line, "f", 1), &report::metrics_line,
                           &report::parse_metrics_line);
  } catch (const Error&) {
  }
  try {
    fuzz::check_round_trip(report::parse_timings_line(line, "f", 1), &report::timings_line,
                           &report::parse_timings_line);
  } catch (const Error&) {
  }
  return 0;
}
