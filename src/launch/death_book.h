#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/launcher.h"

namespace lockstep::launch {

/// How one replica ended, as the launcher saw it.
struct Ending {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  int wait_status = 0;
  bool is_registered = false;
  uint64_t step = 0;
  uint32_t microbatch = UINT32_MAX;
  DeathCause cause = DeathCause::kItself;
  bool is_out_of_memory = false;  // SIGKILL, and the kernel's counter of such kills has risen
  double seconds = 0;             // since the start
  std::vector<std::string> last_stderr_lines;
  uint64_t lines_begin = 0;
};

/// Who died, in order, and what follows for the run's exit status. No processes, no clock.
class DeathBook {
 public:
  /// The death, when it was one: until the next call.
  const Death* add(Ending ending);

  /// The launcher ends the run with this status, whatever the replicas do from now on. The first
  /// call counts.
  void end_run(int exit_status, std::string reason);

  bool is_ending() const { return end_status_.has_value(); }
  int exit_status() const;
  LaunchResult result(double seconds) const;

 private:
  bool is_consequence(const Ending& ending) const;

  std::vector<Death> deaths_;
  bool has_success_ = false;
  bool success_after_last_kill_ = false;  // of a replica that had joined
  std::optional<int> end_status_;
  std::string reason_;
};

/// "exit status 3" as 3, "signal 9" as 137.
int shell_status(int wait_status);

/// "was killed by signal 9 (Killed)", "ended with exit status 3".
std::string describe_wait_status(int wait_status);

/// " in step 5, microbatch 3"; empty when in none.
std::string describe_place(uint64_t step, uint32_t microbatch);

/// The death that the report names first; null when there is none.
const Death* first_failure(const std::vector<Death>& deaths);

}  // namespace lockstep::launch
