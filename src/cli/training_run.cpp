#include "src/cli/training_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/cli/command.h"
#include "src/cli/result_file.h"
#include "src/launch/rank_list.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRemembered = 1000;

std::string own_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot read /proc/self/exe, which says where lockstep_worker is: {}",
                            error.message()));
  }
  return path.string();
}

// The replicas inherit it. Their drills are an option for us and a variable for them, because
// programs under `lockstep run` have no such option.
void export_drills(const std::vector<std::string>& kills) {
  if (kills.empty()) {
    ::unsetenv("LOCKSTEP_KILL");
    return;
  }
  ::setenv("LOCKSTEP_KILL", fmt::format("{}", fmt::join(kills, ",")).c_str(), 1);
}

// What the replicas print. All of them run the same code: what several say is shown once, and as
// often as the one that says it most often.
class ReplicaLines {
 public:
  explicit ReplicaLines(Console& console) : console_(console) {}

  bool take(const launch::OutputLine& line) {
    auto found = said_.find(line.text);
    if (found == said_.end() && said_.size() < kMostRemembered) {
      found = said_.emplace(line.text, Said{}).first;
    }
    if (found != said_.end()) {
      Said& said = found->second;
      const uint64_t times = ++said.times[line.rank];
      if (times <= said.shown) return true;
      said.shown = times;
    }
    console_.warn(fmt::format("[rank {}] {}", line.rank, line.text));
    return true;
  }

 private:
  struct Said {
    uint64_t shown = 0;
    std::map<uint32_t, uint64_t> times;  // by rank
  };

  Console& console_;
  std::map<std::string, Said, std::less<>> said_;
};

// A run that left no step may have left these; our replicas append to the first.
void remove_leftovers(const std::string& folder) {
  for (const char* name : {"/parameter_hashes.jsonl", "/result.json", "/sample.txt"}) {
    ::unlink((folder + name).c_str());
  }
}

launch::LaunchOptions launch_options(const train::PreparedTraining& training) {
  const train::TrainOptions& options = training.options;
  launch::LaunchOptions launch;
  launch.command = {worker_path(), "train"};
  const auto arguments = train::train_arguments(options, train::ArgumentChoice::kAll);
  launch.command.insert(launch.command.end(), arguments.begin(), arguments.end());
  launch.replica_count = options.replicas;
  launch.thread_count = options.threads;
  launch.core_count = training.cpu.usable_cores;
  launch.log_folder = options.log_folder;
  launch.is_shown = launch::parse_ranks("--tee", options.tee, options.replicas);
  launch.timeout = std::chrono::seconds(options.timeout_seconds);
  return launch;
}

report::ProgressState progress_state(const LoggedStep& logged, uint64_t last_step) {
  report::ProgressState state;
  state.step = logged.metrics.step;
  state.total_steps = last_step;
  state.loss = logged.metrics.loss;
  state.gradient_norm = logged.metrics.gradient_norm;
  state.learning_rate = logged.metrics.learning_rate;
  state.samples_per_second = logged.timings.samples_per_second;
  state.tokens_per_second = logged.timings.tokens_per_second;
  return state;
}

}  // namespace

std::string worker_path() {
  const char* other = std::getenv("LOCKSTEP_WORKER");
  std::string path = other != nullptr
                         ? std::string(other)
                         : (fs::path(own_path()).parent_path() / "lockstep_worker").string();
  if (::access(path.c_str(), X_OK) != 0) {
    throw Error(
        ErrorCode::kEnvironment,
        fmt::format("{} is missing or cannot be executed; the replicas are started from it. "
                    "It belongs beside lockstep; a build without LibTorch has none.",
                    base::quote_path(path)));
  }
  return path;
}

std::string program_name() {
  const fs::path path = own_path();
  std::error_code error;
  const char* search = std::getenv("PATH");
  std::istringstream folders(search == nullptr ? "" : search);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.empty()) continue;
    const fs::path there = fs::path(folder) / path.filename();
    if (::access(there.c_str(), X_OK) != 0) continue;
    if (fs::equivalent(there, path, error)) return path.filename().string();
    break;  // another program of this name
  }
  const fs::path relative = fs::relative(path, fs::current_path(error), error);
  if (error || relative.empty() || relative.string().starts_with("..")) return path.string();
  return relative.has_parent_path() ? relative.string() : "./" + relative.string();
}

std::string TrainingOutcome::failure() const {
  return problem.empty() ? launch::failure_report(launch) : problem;
}

int TrainingOutcome::exit_status() const {
  // A replica that was killed from outside is not missed once the whole result is there, also if
  // the others had ended before it died.
  const bool only_kills = launch.reason.empty() && !launch.deaths.empty() &&
                          std::none_of(launch.deaths.begin(), launch.deaths.end(),
                                       [](const launch::Death& death) { return death.is_fault; });
  if (launch.exit_status != 0 && !(is_complete && only_kills)) return launch.exit_status;
  return problem.empty() && is_complete ? kSuccess : kFailure;
}

launch::Pinning pinning_of(const train::TrainOptions& options) {
  return launch::plan_pinning(
      {*launch::parse_pin_mode(options.pin), options.replicas, options.threads});
}

TrainingOutcome run_training(const train::PreparedTraining& training,
                             const launch::Pinning& pinning, Console& console) {
  const train::TrainOptions& options = training.options;
  const uint64_t last_step = options.stop_after == 0
                                 ? training.step_count
                                 : std::min(options.stop_after, training.step_count);
  launch::LaunchOptions launch = launch_options(training);
  launch.cpus = pinning.cpus;
  remove_leftovers(options.out);
  StepLog log(
      {.folder = options.out,
       .last_step = last_step,
       .tokens_per_sample = options.model == train::ModelKind::kGpt ? options.gpt.context : 0,
       .averaging = options.averaging});
  ReplicaLines lines(console);
  launch.on_line = [&](const launch::OutputLine& line) { return lines.take(line); };
  launch.on_notice = [&](std::string_view sentence) {
    console.warn(fmt::format("lockstep: {}", sentence));
  };
  bool has_started = false;
  launch.on_tick = [&](exchange::ControlBlock& control) {
    has_started = true;
    for (const LoggedStep& logged : log.collect(control)) {
      console.show(progress_state(logged, last_step));
    }
  };
  export_drills(options.kills);

  // What is thrown after the start comes from what we do with reports and lines; no replica is left
  // then. The run ends like any other that failed.
  TrainingOutcome outcome;
  const auto start = std::chrono::steady_clock::now();
  try {
    outcome.launch = launch::run_group(launch);
  } catch (const OutputClosed&) {
    outcome.launch.exit_status = kBrokenOutput;
    outcome.launch.reason = "nobody reads the output any more";
  } catch (const Error& error) {
    if (!has_started) throw;
    outcome.problem = error.what();
  }
  if (outcome.launch.seconds == 0) {
    outcome.launch.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  outcome.step_count = log.step_count();
  outcome.is_complete = log.is_complete();
  if (log.step_count() > 0) outcome.last = log.last();
  outcome.samples_per_second = log.samples_per_second();
  outcome.tokens_per_second = log.tokens_per_second();
  if (outcome.launch.exit_status == 0 && outcome.problem.empty() && !outcome.is_complete) {
    outcome.problem = fmt::format("the replicas ended with status 0 after {} of {} steps",
                                  outcome.step_count, last_step);
  }
  try {
    write_result(training, outcome);
  } catch (const Error& error) {
    if (!outcome.problem.empty()) outcome.problem += "\n";
    outcome.problem += error.what();
  }
  return outcome;
}

}  // namespace lockstep::cli
