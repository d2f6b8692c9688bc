#pragma once

#include <cstdint>
#include <optional>
#include <string>

// The machine as this process may use it: what the scheduler, the container and its parents leave
// of it. `root` is where /proc and /sys are looked for: "/", or a made-up tree in tests.

namespace lockstep::base {

struct CpuBudget {
  uint32_t usable_cores = 1;          // min(physical_cores, quota_cores rounded down), at least 1
  uint32_t affinity_cores = 1;        // logical cores in the affinity mask
  uint32_t physical_cores = 1;        // of these; SMT siblings count once
  std::optional<double> quota_cores;  // the smallest CPU quota of any cgroup above us
  std::string reason;                 // "2 physical cores in the affinity mask; no CPU quota"
};

/// Affinity is that of the calling thread. Throws Error(kEnvironment) when it cannot be read.
CpuBudget cpu_budget(const std::string& root = "/");

struct MemoryBudget {
  uint64_t available_bytes = 0;  // what may still be taken, 5 % kept back
  std::string limited_by;        // "MemAvailable", "memory.max of cgroup '/a/b'"
  std::string reason;            // one clause with the figures
};

/// The minimum of MemAvailable and of (limit - usage) of every cgroup above this process, v1 and
/// v2, less 5 %. Usage is counted without the inactive file cache, which the kernel gives back on
/// demand (MemAvailable counts it as available too). Throws Error(kEnvironment).
MemoryBudget memory_budget(const std::string& root = "/");

/// "0 bytes", "1 byte", "1023 bytes", "1.5 GiB". The same in every locale.
std::string format_bytes(uint64_t bytes);

/// "350ms", "3.5s", "42s", "2m10s", "1h05m", "3d04h"; "unknown" for what is no duration.
std::string format_duration(double seconds);

}  // namespace lockstep::base
