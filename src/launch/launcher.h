#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/exchange/control.h"

// Starts the replicas of one group on this host, relays what they print, records who dies and why,
// and leaves no process behind, however it ends.

namespace lockstep::launch {

/// A piece of what a replica printed: a line, or a part of one that is longer than 64 KiB or stands
/// unfinished for 200 ms or at the end.
struct OutputLine {
  uint32_t rank = 0;
  bool is_stderr = false;
  std::string_view text;    // without the line's end
  bool has_newline = true;  // false: the replica has not ended this line here
};

struct LaunchOptions {
  std::vector<std::string>
      command;  // program and arguments, no shell; the program is sought in PATH
  uint32_t replica_count = 1;
  uint32_t thread_count = 1;                   // per microbatch
  uint32_t core_count = 1;                     // that the group may use
  std::vector<std::vector<uint32_t>> cpus;     // [rank] it is bound to, see pinning.h; empty: none
  std::chrono::milliseconds timeout{300'000};  // of waits for another replica; 0: never
  std::chrono::milliseconds grace{2'000};      // between SIGTERM and SIGKILL when the run is ended
  bool prefix_lines = true;                    // "[rank 2] " before each line
  bool end_on_failure_before_registration = true;
  std::string log_folder;      // also gets what the replicas print, see log_files.h; empty: none
  std::vector<bool> is_shown;  // [rank] whether its lines are shown; empty: all are

  /// Where lines and notices go when on_line or on_notice are empty. A reader that is slow slows
  /// the replicas, and nothing else.
  int stdout_fd = 1;
  int stderr_fd = 2;

  /// Gets every line instead of the descriptors above. False: nobody reads any more; ends the run
  /// with status 141. It should not block: the launcher does nothing else meanwhile.
  std::function<bool(const OutputLine&)> on_line;

  /// The launcher's own sentences, without a line's end. Empty: "lockstep: " and the sentence to
  /// stderr_fd.
  std::function<void(std::string_view)> on_notice;

  /// Called about every 50 ms and once after the last exit, to read the report rings. Where it is
  /// set, the control block's `reporting` is 1.
  std::function<void(exchange::ControlBlock&)> on_tick;
};

enum class DeathCause {
  kItself,     // an exit, an exception, a fault
  kOutside,    // a signal that lockstep did not send
  kDrill,      // announced by the process itself
  kRequested,  // SIGKILL from the launcher, because a peer waited too long for it
  kLauncher,   // ended with the run
};

/// An end other than with status 0.
struct Death {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  int wait_status = 0;               // as waitpid gives it
  uint64_t step = 0;                 // 0: in none
  uint32_t microbatch = UINT32_MAX;  // UINT32_MAX: in none
  std::string description;           // "was killed by signal 9 (Killed) in step 37"
  bool is_fault = false;             // see exchange::is_work_fault
  bool is_registered = false;        // had joined the group
  bool is_consequence = false;       // of an earlier failure, or of the end of the run
  DeathCause cause = DeathCause::kItself;
  double seconds = 0;                          // since the start
  std::vector<std::string> last_stderr_lines;  // 12 at most
  uint64_t lines_begin = 0;                    // row of the first, see Output::row()
  bool lines_are_on_screen = false;            // they need not be shown again
};

struct LaunchResult {
  /// 0: every replica that was not killed from outside ended with 0, and at least one that had
  /// joined did so after the last kill. Else the first failure's exit status, or 128 + its signal;
  /// 128 + the launcher's signal; 141: nobody reads the output; 127, 126: the command is not there,
  /// or cannot be executed; 1: all went well, but what the replicas printed could not be written,
  /// or their copies of the model differ after the last update.
  int exit_status = 0;
  std::vector<Death> deaths;  // in order of time
  std::string reason;         // what the launcher itself found wrong; empty: nothing
  double seconds = 0;
};

/// Runs the group and returns when nothing of it is left. SIGINT, SIGTERM and SIGHUP end the run
/// (those that were ignored before stay ignored); handlers, SIGPIPE and subreaper status are as
/// before afterwards. Replicas stay in the caller's process group: ctrl-Z stops all of them, and a
/// signal to the group reaches all. One run at a time in a process. Throws Error(kUsage),
/// Error(kEnvironment).
LaunchResult run_group(const LaunchOptions& options);

/// What to print last when a run failed: the cause with rank, step, signal or exit status and its
/// last lines on stderr; consequences are only counted. Empty when exit_status is 0.
std::string failure_report(const LaunchResult& result);

}  // namespace lockstep::launch
