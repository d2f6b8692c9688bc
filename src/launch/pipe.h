#pragma once

#include "src/exchange/shared_memory.h"

namespace lockstep::launch {

struct Pipe {
  exchange::Descriptor read_end;
  exchange::Descriptor write_end;
};

/// Both ends are closed on exec. Throws Error(kEnvironment).
Pipe make_pipe();

void set_non_blocking(const exchange::Descriptor& end);

/// The error of a process that has no room for another descriptor.
[[noreturn]] void throw_no_descriptor(const char* wanted, int error);

}  // namespace lockstep::launch
