#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/exchange/shared_memory.h"

namespace lockstep::launch {

enum class PinMode { kAuto, kOn, kOff };

std::optional<PinMode> parse_pin_mode(std::string_view text);  // auto, on, off

/// Which CPUs each replica is bound to. As long as this lives, runs of this machine that pin by
/// themselves take other cores. The claims are abstract sockets, which end with the process; they
/// are seen by all users, but not from another network namespace.
struct Pinning {
  std::vector<std::vector<uint32_t>> cpus;  // [rank]; empty: not pinned
  std::string note;                         // "pinned to cores 0, 2"; "not pinned: ..."
  std::vector<exchange::Descriptor> claims;
};

struct PinRequest {
  PinMode mode = PinMode::kAuto;
  uint32_t replica_count = 1;
  uint32_t thread_count = 1;
};

/// Gives each replica `thread_count` physical cores of its own, within the affinity mask of this
/// process. kAuto does so where there are enough, no CPU quota is smaller than the cores, and no
/// other run has taken them; kOn wherever there are enough. Throws Error(kUsage) where kOn is not
/// possible. `root`: see base/system.h.
Pinning plan_pinning(const PinRequest& request, const std::string& root = "/");

}  // namespace lockstep::launch
