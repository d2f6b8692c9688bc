#pragma once

#include <signal.h>

#include <array>
#include <optional>

#include "src/exchange/shared_memory.h"

namespace lockstep::launch {

/// Catches SIGINT, SIGTERM and SIGHUP and ignores SIGPIPE while it lives; one at a time in a process.
/// SIGCHLD gets its default: where it was ignored, the kernel would forget how children ended.
/// Handlers that write to a pipe, not a signalfd: it would need the signals blocked in threads that
/// the caller started before. A signal that was ignored before (nohup) stays ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return read_end_.get(); }  // readable when one has come

  /// The oldest one that has come and was not taken yet.
  std::optional<int> take();

  /// Between fork and exec, with all signals blocked: nothing caught, all as it was.
  void undo_in_child() const;

 private:
  void restore() const;

  exchange::Descriptor read_end_;
  exchange::Descriptor write_end_;
  std::array<struct sigaction, 5> before_{};  // [index in kCaught]
};

}  // namespace lockstep::launch
