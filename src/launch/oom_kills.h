#pragma once

#include <cstdint>
#include <string>

namespace lockstep::launch {

/// How many processes the kernel has killed for want of memory, in this process's cgroups (v2 and
/// v1) and on this machine, added up. Some are counted more than once: the sum tells something only
/// by rising. `root` is put before all paths, for tests.
uint64_t oom_kill_count(const std::string& root = "");

}  // namespace lockstep::launch
