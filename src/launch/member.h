#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "src/exchange/shared_memory.h"
#include "src/launch/line_splitter.h"
#include "src/launch/output.h"
#include "src/launch/process.h"

namespace lockstep::launch {

using Clock = std::chrono::steady_clock;

/// The read end of what a replica's command prints to one of its two streams. Everything that the
/// command started may hold the other end.
class Stream {
 public:
  Stream() = default;
  Stream(exchange::Descriptor read_end, uint32_t rank, bool is_stderr);

  int fd() const { return read_end_.get(); }
  bool is_open() const { return static_cast<bool>(read_end_); }

  /// Reads at most `limit_bytes` without waiting; false when nothing was there.
  bool relay(Output& output, LastLines& last_lines, size_t limit_bytes);

  /// Emits what is there of an unfinished line.
  void flush(Output& output, LastLines& last_lines);

  /// The same, where nothing has come since then and nothing waits to be read.
  void flush_since(Output& output, LastLines& last_lines, Clock::time_point since);

 private:
  LineSplitter::Emit emit_to(Output& output, LastLines& last_lines) const;

  exchange::Descriptor read_end_;
  uint32_t rank_ = 0;
  bool is_stderr_ = false;
  LineSplitter splitter_;
  Clock::time_point last_byte_;
};

/// One started replica: the command (a child of ours) and the process that registered, which is the
/// same, or below it where the command is a wrapper.
struct Member {
  uint32_t rank = 0;
  uint32_t incarnation = 0;

  pid_t child_pid = -1;
  exchange::Descriptor child_pidfd;
  std::optional<int> child_status;  // empty: it runs

  bool is_registered = false;
  pid_t registered_pid = 0;
  exchange::Descriptor registered_pidfd;             // empty where it is the child
  std::optional<Clock::time_point> status_deadline;  // it is dead, its status not known yet
  std::optional<int> ended;                          // the replica's wait status, once published

  exchange::Descriptor exec_error;
  exchange::Descriptor socket;
  exchange::Descriptor lifeline;  // the only write end; kept until the run ends
  Stream streams[2];              // [is_stderr]
  LastLines last_lines;
  bool kill_requested = false;

  bool is_over() const { return ended.has_value() && child_status.has_value(); }
  const exchange::Descriptor& replica_pidfd() const {
    return registered_pidfd ? registered_pidfd : child_pidfd;
  }
};

struct MemberStart {
  uint32_t rank;
  uint32_t incarnation;
  uint32_t replica_count;
  uint32_t thread_count;
  const std::vector<std::string>& command;
  int control_fd;
  const std::string& run_token;
  const StopSignals& signals;
  uint64_t open_file_limit;
  const std::vector<uint32_t>& cpus;  // see SpawnRequest
};

Member start_member(const MemberStart& start);

/// To the command and to the registered process.
void signal_member(const Member& member, int signal);

}  // namespace lockstep::launch
