#pragma once

#include <signal.h>

#include <array>
#include <optional>

#include "src/launch/pipe.h"

namespace lockstep::launch {

/// Catches SIGINT, SIGTERM and SIGHUP and ignores SIGPIPE and SIGXFSZ (the write fails instead)
/// while it lives; one at a time in a process. SIGCHLD gets its default: where it was ignored, the
/// kernel would forget how children ended. Handlers that write to a pipe, not a signalfd: it would
/// need the signals blocked in threads that the caller started before. A signal that was ignored
/// before (nohup) stays ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return pipe_.read_end.get(); }  // readable when one has come

  /// The oldest one that has come and was not taken yet.
  std::optional<int> take();

  /// All as it was before. For a child between fork and exec, too, with all signals blocked.
  void restore() const;

 private:
  Pipe pipe_;
  std::array<struct sigaction, 6> before_{};  // [index in kCaught]
};

}  // namespace lockstep::launch
