#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

/// What kind of thing went wrong; the command line turns it into an exit status.
enum class ErrorCode {
  kUsage,        ///< the call or the command line contradicts itself (exit status 2)
  kInput,        ///< a file or value from outside is unusable (exit status 2)
  kEnvironment,  ///< the machine or its settings do not allow it: memory, descriptors, variables
  kPeer,         ///< another replica or the launcher is gone, or did not answer in time
  kDiverged,     ///< two replicas disagree about what must be equal; the run must not go on
  kData,         ///< the numbers are at fault: a count of zero, a value that is not finite
  kInternal,     ///< a rule of the library was broken in a way that only we can mend
};

/// The one exception that lockstep throws for errors of operation. The message says what was
/// tried, on which rank, step and object, what was expected, what was found, and what to do.
/// A broken invariant of the library itself does not throw: it prints both values and aborts.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace lockstep
