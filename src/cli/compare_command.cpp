#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/cli/command.h"
#include "src/cli/console.h"
#include "src/cli/run_comparison.h"

namespace lockstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: lockstep compare A B

Compares two folders that `lockstep train` wrote, step by step and bit by bit. Says at which step
and which parameter they first differ, and the likely reason.
Exit status: 0 the same bits, 1 a difference, 2 one of them is no run.)";

}  // namespace

int compare_command(const std::vector<std::string>& arguments) {
  Console console;
  if (asks_for_help(arguments)) {
    console.print(kHelp);
    return kSuccess;
  }
  if (arguments.size() != 2) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("lockstep compare needs two folders, and found {} {}. `lockstep compare "
                    "--help` says more.",
                    arguments.size(), arguments.size() == 1 ? "word" : "words"));
  }
  const StoredRun a = read_run(arguments[0]);
  const StoredRun b = read_run(arguments[1]);
  console.print(fmt::format("A: {}, {} steps", a.folder, a.metrics.size()));
  console.print(fmt::format("B: {}, {} steps", b.folder, b.metrics.size()));
  if (a.metrics.empty() || b.metrics.empty()) {
    throw Error(ErrorCode::kInput,
                fmt::format("{} has no step to compare.", (a.metrics.empty() ? a : b).folder));
  }
  if (const auto difference = first_difference(a, b)) {
    for (const std::string& line : explain(a, b, *difference)) console.print(line);
    return kFailure;
  }
  const size_t common = std::min(a.metrics.size(), b.metrics.size());
  if (a.metrics.size() != b.metrics.size()) {
    const bool is_a = a.metrics.size() > b.metrics.size();
    console.print(fmt::format("no difference in the {} {} that both have; {} goes on to step {}",
                              common, common == 1 ? "step" : "steps", is_a ? "A" : "B",
                              (is_a ? a : b).metrics.size()));
    console.print(fmt::format("parameter hash after step {}, the last of {}: {}", common,
                              is_a ? "B" : "A", a.metrics[common - 1].parameter_hash));
    for (const std::string& field : recipe_differences(a, b)) {
      console.print("the recipes differ: " + field);
    }
    return kFailure;
  }
  const auto& hash = a.metrics.back().state_hash;
  console.print(fmt::format("same bits: {} {}{}", common, common == 1 ? "step" : "steps",
                            hash && b.metrics.back().state_hash ? ", state hash " + *hash : ""));
  for (const std::string& field : recipe_differences(a, b)) {
    console.print("although the recipes differ: " + field);
  }
  return kSuccess;
}

}  // namespace lockstep::cli
