#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/exchange/shared_memory.h"
#include "src/launch/stop_signals.h"

// Processes as the kernel shows them: started, watched, counted, ended. Signals go through pidfds,
// so that a number that was given to another process meanwhile is never hit.

namespace lockstep::launch {

struct SpawnRequest {
  const std::vector<std::string>& command;
  const std::vector<std::string>& environment;
  int stdout_fd;
  int stderr_fd;
  std::array<int, 3> inherited_fds;   // stay open in the child, under the same numbers
  const StopSignals& signals;         // undone in the child
  uint64_t open_file_limit;           // the child's
  const std::vector<uint32_t>& cpus;  // that the child is bound to; empty: it is not
};

struct SpawnedProcess {
  pid_t pid = -1;
  exchange::Descriptor pidfd;
  /// Ends when the command has been executed; has an errno in it where it could not be.
  exchange::Descriptor exec_error;
};

/// Starts the command in this process group, with /dev/null as standard input. It gets SIGKILL when
/// the calling thread ends. Throws Error(kEnvironment) where no process can be made.
SpawnedProcess spawn(const SpawnRequest& request);

struct ProcessStatus {
  pid_t parent = 0;
  char state = '?';     // as in /proc/PID/stat; 'Z': dead, its parent has not looked yet
  int wait_status = 0;  // in state Z
};

/// Empty when there is no such process.
std::optional<ProcessStatus> process_status(pid_t pid);

bool is_descendant(pid_t pid, pid_t ancestor);

/// All processes below `ancestor`, but for those below (and equal to) one of `except`.
std::vector<pid_t> descendants(pid_t ancestor, const std::set<pid_t>& except);

exchange::Descriptor open_pidfd(pid_t pid);  // empty when there is no such process

void send_signal(const exchange::Descriptor& pidfd, int signal);

/// The wait status of a dead process, if the kernel tells: a child is reaped by this.
std::optional<int> take_wait_status(const exchange::Descriptor& pidfd, pid_t pid);

/// SIGKILL to all descendants but `except`, again until none is left or 10 s have passed; reaps
/// those that are children of ours. Returns those left.
std::vector<pid_t> end_descendants(const std::set<pid_t>& except);

/// Reaps children that we never started: orphans that came to us as their subreaper.
void reap_orphans(const std::set<pid_t>& except);

}  // namespace lockstep::launch
