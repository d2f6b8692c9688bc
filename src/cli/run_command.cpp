#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/number.h"
#include "src/base/quote_path.h"
#include "src/base/system.h"
#include "src/cli/command.h"
#include "src/cli/console.h"
#include "src/launch/launcher.h"
#include "src/launch/pinning.h"

namespace lockstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: lockstep run -n N [options] -- PROGRAM [ARGS ...]

Starts N replicas of a program that uses the library, puts "[rank R] " before what they print,
and ends when the last has ended: with 0 if all went well, else with the first failure's status.

  -n, --replicas N     how many; default: what the cores that may be used hold
  --threads T          of each replica, default 1; part of what the bits depend on
  --timeout SECONDS    of a wait for another replica, default 300; 0: never
  --no-prefix          print the replicas' lines as they are
  --log-dir DIR        what rank R prints is also appended, byte for byte, to DIR/rank-R.out
                       (standard output) and DIR/rank-R.err; DIR is made
  --tee RANKS          whose lines are shown here: all (default), none, 0, 0,2-3
  --pin auto|on|off    bind each replica to cores of its own; auto (default): where there are
                       enough that no other run has, and no CPU quota; costs no bits
  --kill RANK@STEP     a drill: that replica is killed in that step; repeatable)";

struct RunOptions {
  uint32_t replicas = 0;  // 0: not given
  uint32_t threads = 1;
  uint64_t timeout_seconds = 300;
  bool prefix_lines = true;
  launch::PinMode pin = launch::PinMode::kAuto;
  std::string log_folder;
  std::string tee = "all";
  std::vector<std::string> kills;
  std::vector<std::string> command;
};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kUsage, message + " `lockstep run --help` says more.");
}

uint64_t whole_number(const std::string& name, const std::string& text, uint64_t low,
                      uint64_t high) {
  const auto value = base::number_from<uint64_t>(text);
  if (!value || *value < low || *value > high) {
    refuse(fmt::format("{} {}: expected a whole number from {} to {}.", name,
                       base::quote_path(text), low, high));
  }
  return *value;
}

launch::PinMode pin_mode(const std::string& text) {
  const auto mode = launch::parse_pin_mode(text);
  if (!mode) refuse(fmt::format("--pin {}: expected auto, on or off.", base::quote_path(text)));
  return *mode;
}

// The words before "--", or before the first that is no option, are ours; the rest is the
// program's.
RunOptions parse(const std::vector<std::string>& arguments) {
  RunOptions options;
  size_t i = 0;
  std::optional<std::string> joined;  // the value in "--name=value"
  const auto value_of = [&](const std::string& name) {
    if (joined) return *std::exchange(joined, std::nullopt);
    if (i + 1 >= arguments.size()) refuse(name + " needs a value, and none follows.");
    return arguments[++i];
  };
  for (; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (!word.starts_with('-')) break;
    if (word.starts_with("-n") && word.size() > 2) {
      joined = word.substr(word[2] == '=' ? 3 : 2);
      word.resize(2);
    }
    const size_t equals = word.find('=');
    if (word.starts_with("--") && equals != std::string::npos) {
      joined = word.substr(equals + 1);
      word.resize(equals);
    }
    if (word == "-n" || word == "--replicas") {
      options.replicas =
          static_cast<uint32_t>(whole_number(word, value_of(word), 1, exchange::kMaxReplicas));
    } else if (word == "--threads") {
      options.threads = static_cast<uint32_t>(whole_number(word, value_of(word), 1, 1024));
    } else if (word == "--timeout") {
      options.timeout_seconds = whole_number(word, value_of(word), 0, 366 * 24 * 3600);
    } else if (word == "--no-prefix") {
      options.prefix_lines = false;
    } else if (word == "--log-dir") {
      options.log_folder = value_of(word);
      if (options.log_folder.empty()) refuse("--log-dir '': expected the name of a folder.");
    } else if (word == "--pin") {
      options.pin = pin_mode(value_of(word));
    } else if (word == "--tee") {
      options.tee = value_of(word);
    } else if (word == "--kill") {
      options.kills.push_back(value_of(word));
    } else {
      refuse(fmt::format("lockstep run has no option {}; the program stands after \"--\".",
                         base::quote_path(word)));
    }
    if (joined) refuse(fmt::format("{} takes no value.", word));
  }
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (options.command.empty())
    refuse("which program? Expected: lockstep run -n N -- PROGRAM ARGS.");
  return options;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
  Console console;
  if (arguments.empty() || asks_for_help(arguments)) {
    console.print(kHelp);
    return arguments.empty() ? kWrongUsage : kSuccess;
  }
  RunOptions options = parse(arguments);
  const base::CpuBudget cpu = base::cpu_budget();
  if (options.replicas == 0) {
    options.replicas =
        std::clamp(cpu.usable_cores / options.threads, 1u, uint32_t{exchange::kMaxReplicas});
    console.warn(fmt::format("lockstep: {} {}, {} {} each ({})", options.replicas,
                             options.replicas == 1 ? "replica" : "replicas", options.threads,
                             options.threads == 1 ? "thread" : "threads", cpu.reason));
  }
  const uint64_t threads = uint64_t{options.replicas} * options.threads;
  if (threads > cpu.usable_cores) {
    console.warn(
        fmt::format("lockstep: warning: {} x {} = {} threads on {} cores ({}): they take "
                    "turns, which costs time and no bits.",
                    options.replicas, options.threads, threads, cpu.usable_cores, cpu.reason));
  }
  if (!options.kills.empty()) {
    ::setenv("LOCKSTEP_KILL", fmt::format("{}", fmt::join(options.kills, ",")).c_str(), 1);
  }
  launch::LaunchOptions launch;
  launch.command = options.command;
  launch.replica_count = options.replicas;
  launch.thread_count = options.threads;
  launch.core_count = cpu.usable_cores;
  launch.timeout = std::chrono::seconds(options.timeout_seconds);
  const launch::Pinning pinning =
      launch::plan_pinning({options.pin, options.replicas, options.threads});
  launch.cpus = pinning.cpus;
  if (options.pin == launch::PinMode::kOn) console.warn("lockstep: " + pinning.note);
  launch.prefix_lines = options.prefix_lines;
  launch.log_folder = options.log_folder;
  launch.is_shown = shown_ranks(options.tee, options.replicas, options.log_folder, console);
  const launch::LaunchResult result = launch::run_group(launch);
  const std::string report = launch::failure_report(result);
  if (!report.empty()) console.warn("lockstep: " + report);
  return result.exit_status;
}

}  // namespace lockstep::cli
