#pragma once

#include <sys/types.h>

#include <string>

#include "src/exchange/shared_memory.h"

namespace lockstep::launch {

/// A small process that outlives the launcher. Where the launcher is killed hard, replicas die by
/// their lifelines, but what they or a wrapper script started has none: the sweeper then ends every
/// process that has `run_token` in its environment (LOCKSTEP_RUN), and itself. It has a session of
/// its own, so that a signal to the launcher's process group does not reach it.
class Sweeper {
 public:
  explicit Sweeper(const std::string& run_token);
  ~Sweeper();  // the run has ended in order: nothing to sweep
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;

  pid_t pid() const { return pid_; }

 private:
  exchange::Descriptor lifeline_;  // the only write end
  pid_t pid_ = -1;
};

/// 128 random bits in hexadecimal digits.
std::string make_run_token();

}  // namespace lockstep::launch
