#include "src/launch/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/error.h"

namespace lockstep::launch {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_no_descriptor("a pipe", errno);
  return {exchange::Descriptor(ends[0]), exchange::Descriptor(ends[1])};
}

void set_non_blocking(const exchange::Descriptor& end) {
  ::fcntl(end.get(), F_SETFL, ::fcntl(end.get(), F_GETFL) | O_NONBLOCK);
}

void throw_no_descriptor(const char* wanted, int error) {
  throw Error(
      ErrorCode::kEnvironment,
      fmt::format("the launcher cannot make {}: {} (no more descriptors? about ten are needed "
                  "for each replica: see `ulimit -Hn`)",
                  wanted, std::strerror(error)));
}

}  // namespace lockstep::launch
