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
  return {report::metrics_line(metrics), report::metrics_line(more),
          report::timings_line(report::StepTimings{})};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view line = fuzz::text_of(data, size);
  try {
    // What is accepted must be written and read as the same.
    const std::string again = report::metrics_line(report::parse_metrics_line(line, "f", 1));
    const std::string twice = report::metrics_line(report::parse_metrics_line(again, "f", 1));
    LOCKSTEP_CHECK(again == twice, again, twice);
  } catch (const Error&) {
  }
  try {
    const std::string again = report::timings_line(report::parse_timings_line(line, "f", 1));
    const std::string twice = report::timings_line(report::parse_timings_line(again, "f", 1));
    LOCKSTEP_CHECK(again == twice, again, twice);
  } catch (const Error&) {
  }
  return 0;
}
