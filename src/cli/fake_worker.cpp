// What the tests of this folder have `lockstep train` start instead of lockstep_worker: it joins
// the group and reports steps as a replica does, without LibTorch and without training. The same
// figures on every rank, and in every run of one seed.
//
// LOCKSTEP_FAKE makes it misbehave: RANK:ACTION[=VALUE]@STEP, several with ';' between them; RANK
// may be *. Before the report of that step: exit=STATUS, signal=NUMBER, throw=TEXT, hang, pause=MS,
// say=TEXT, out=TEXT, limit=BYTES (of the files that the launcher may write). In the report: loss,
// hash (another one), nan. After it: done (ends with 0).

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/base/random.h"
#include "src/exchange/event.h"
#include "src/launch/replica_link.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

using exchange::StepReport;

constexpr int kGaveUp = 99;
constexpr unsigned kLongestHangSeconds = 120;

struct Action {
  std::string rank;
  std::string name;
  std::string value;
  uint64_t step = 0;
};

std::vector<Action> parse_actions(const std::string& text) {
  std::vector<Action> actions;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    const size_t colon = one.find(':');
    const size_t at = one.rfind('@');
    if (colon == std::string::npos || at == std::string::npos) {
      throw std::runtime_error("LOCKSTEP_FAKE=" + one);
    }
    const std::string what = one.substr(colon + 1, at - colon - 1);
    const size_t equals = std::min(what.find('='), what.size());
    actions.push_back({one.substr(0, colon), what.substr(0, equals),
                       equals < what.size() ? what.substr(equals + 1) : "",
                       std::stoull(one.substr(at + 1))});
    begin = end + 1;
  }
  return actions;
}

class FakeReplica {
 public:
  FakeReplica(const train::TrainOptions& options, const launch::WorkerEnvironment& environment)
      : options_(options), link_(environment) {
    const char* fake = std::getenv("LOCKSTEP_FAKE");
    actions_ = parse_actions(fake == nullptr ? "" : fake);
  }

  void run() {
    const uint64_t last = options_.stop_after != 0 ? options_.stop_after : options_.steps;
    StepReport report{};
    for (uint64_t step = 1; step <= last; ++step) {
      link_.entry().step = step;
      report = report_of(step);
      for (const Action& action : actions_) {
        if (is_ours(action, step)) perform(action, report);
      }
      send(report);
      for (const Action& action : actions_) {
        if (is_ours(action, step) && action.name == "done") std::_Exit(0);
      }
    }
    report.is_last = 1;
    report.has_state_hash = 1;
    report.state_hash = {report.parameter_hash.low, options_.seed};
    if (options_.sample != 0 && link_.rank() == 0) {
      base::write_file_atomically(options_.out + "/sample.txt", "a sample\n\x1b[31m\xff");
    }
    send(report);
  }

 private:
  bool is_ours(const Action& action, uint64_t step) const {
    return step == action.step &&
           (action.rank == "*" || action.rank == std::to_string(link_.rank()));
  }

  StepReport report_of(uint64_t step) const {
    StepReport report{};
    report.step = step;
    report.loss = 5 + static_cast<double>(base::mix_key(options_.seed, step) >> 11) * 0x1p-53;
    report.gradient_norm = 1 / static_cast<double>(step);
    report.learning_rate = options_.learning_rate;
    report.samples = options_.global_batch;
    report.parameter_hash = {base::mix_key(options_.seed, step, 1), step};
    report.seconds = 0.01;
    report.compute = 0.005;
    return report;
  }

  void perform(const Action& action, StepReport& report) {
    if (action.name == "exit") std::_Exit(std::stoi(action.value));
    if (action.name == "signal") {
      ::signal(std::stoi(action.value), SIG_DFL);
      ::raise(std::stoi(action.value));
    }
    if (action.name == "throw") throw std::runtime_error(action.value);
    if (action.name == "limit") {
      const rlim_t bytes = std::stoul(action.value);
      const rlimit limit{bytes, bytes};
      ::prlimit(::getppid(), RLIMIT_FSIZE, &limit, nullptr);
    }
    if (action.name == "hang") ::sleep(kLongestHangSeconds);
    if (action.name == "pause") ::usleep(static_cast<useconds_t>(std::stoul(action.value) * 1000));
    if (action.name == "say") std::fprintf(stderr, "%s\n", action.value.c_str());
    if (action.name == "out") std::printf("%s\n", action.value.c_str()), std::fflush(stdout);
    if (action.name == "loss") report.loss += 1e-9;
    if (action.name == "hash") report.parameter_hash.low ^= 1;
    if (action.name == "nan") report.loss = std::numeric_limits<double>::quiet_NaN();
  }

  void send(const StepReport& report) {
    exchange::Event event(&link_.control().event, link_.rank(), 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (true) {
      const uint32_t seen = event.value();
      if (exchange::push_report(link_.control(), link_.rank(), report)) return;
      if (std::chrono::steady_clock::now() > end) std::_Exit(kGaveUp);
      event.wait(seen, 1000);
    }
  }

  train::TrainOptions options_;
  launch::ReplicaLink link_;
  std::vector<Action> actions_;
};

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  const rlimit no_core{0, 0};  // faults are on purpose here
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    const auto environment = lockstep::launch::worker_environment_from_environ();
    if (!environment || argc < 2) throw std::runtime_error("not started by a launcher");
    const std::vector<std::string> arguments(argv + 2, argv + argc);
    lockstep::cli::FakeReplica(lockstep::train::parse_worker_arguments(arguments), *environment)
        .run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return 1;
  }
}
