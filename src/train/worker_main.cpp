// lockstep_worker train ARGS: one replica of `lockstep train`, started by the launcher.

#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "src/train/train_command_line.h"
#include "src/train/trainer.h"

namespace {

int exit_status_of(lockstep::ErrorCode code) {
  const bool is_usage = code == lockstep::ErrorCode::kUsage || code == lockstep::ErrorCode::kInput;
  return is_usage ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments.front() != "train") {
    std::fprintf(stderr, "lockstep_worker is started by `lockstep train`, not by hand\n");
    return 2;
  }
  try {
    lockstep::train::train_replica(lockstep::train::parse_worker_arguments(
        std::vector<std::string>(arguments.begin() + 1, arguments.end())));
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return exit_status_of(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: unexpected error: %s\n", error.what());
    return 1;
  }
}
