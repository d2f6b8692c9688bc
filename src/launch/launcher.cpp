#include "src/launch/launcher.h"

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/launch/group_run.h"

namespace lockstep::launch {
namespace {

void check_options(const LaunchOptions& options) {
  if (options.command.empty() || options.command[0].empty()) {
    throw Error(ErrorCode::kUsage, "no command to run was given");
  }
  if (options.replica_count < 1 || options.replica_count > exchange::kMaxReplicas) {
    throw Error(ErrorCode::kUsage, fmt::format("{} replicas on one host: expected 1 to {}",
                                               options.replica_count, exchange::kMaxReplicas));
  }
  LOCKSTEP_CHECK(options.is_shown.empty() || options.is_shown.size() == options.replica_count,
                 options.is_shown.size(), options.replica_count);
  LOCKSTEP_CHECK(options.cpus.empty() || options.cpus.size() == options.replica_count,
                 options.cpus.size(), options.replica_count);
}

}  // namespace

LaunchResult run_group(const LaunchOptions& options) {
  check_options(options);
  GroupRun run(options);
  return run.run();
}

}  // namespace lockstep::launch
