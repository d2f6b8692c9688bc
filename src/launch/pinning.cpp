#include "src/launch/pinning.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/counted.h"
#include "src/base/system.h"
#include "src/base/topology.h"

namespace lockstep::launch {
namespace {

using base::Core;
using exchange::Descriptor;

constexpr size_t kMostListed = 8;  // replicas whose cores are named one by one

struct Claim {
  bool is_taken = false;  // by another run
  Descriptor socket;
};

Claim claim(const Core& core, const std::string& root) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays 0: a name without a file.
  const std::string name = fmt::format("lockstep-core-{}{}", core.cpus[0], root == "/" ? "" : root);
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  name.copy(address.sun_path + 1, size);
  Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) {
    return {false, std::move(socket)};
  }
  return {errno == EADDRINUSE, {}};
}

std::string needed_threads(const PinRequest& request) {
  const uint64_t threads = uint64_t{request.replica_count} * request.thread_count;
  if (request.thread_count == 1) return base::counted(request.replica_count, "replica");
  return fmt::format("{} x {} = {}", base::counted(request.replica_count, "replica"),
                     base::counted(request.thread_count, "thread"),
                     base::counted(threads, "thread"));
}

// A core is named by its lowest CPU.
std::string describe(const std::vector<Core>& cores,
                     const std::vector<std::vector<uint32_t>>& cpus) {
  std::set<uint32_t> all;
  std::vector<std::string> lists;  // [rank]
  for (const auto& of_rank : cpus) {
    std::set<uint32_t> names;
    for (const Core& core : cores) {
      if (std::binary_search(of_rank.begin(), of_rank.end(), core.cpus[0])) {
        names.insert(core.cpus[0]);
      }
    }
    all.insert(names.begin(), names.end());
    lists.push_back(base::format_cpu_list(names));
  }
  return fmt::format("pinned to {} {}", all.size() == 1 ? "core" : "cores",
                     cpus.size() <= kMostListed ? fmt::format("{}", fmt::join(lists, ", "))
                                                : base::format_cpu_list(all));
}

// Fills in `claims` and `cpus`, from cores that no other run has. Leaves `cpus` empty where those
// are too few. Returns how many others have.
size_t take_free_cores(const PinRequest& request, const std::vector<Core>& cores,
                       const std::string& root, Pinning& pinning) {
  std::vector<Core> free;
  std::vector<Descriptor> sockets;  // [index in free]
  for (const Core& core : cores) {
    Claim claimed = claim(core, root);
    if (claimed.is_taken) continue;
    free.push_back(core);
    sockets.push_back(std::move(claimed.socket));
  }
  pinning.cpus = base::share_cores(free, request.replica_count, request.thread_count);
  for (size_t i = 0; i < free.size(); ++i) {
    const bool is_used = std::any_of(pinning.cpus.begin(), pinning.cpus.end(), [&](const auto& of) {
      return std::binary_search(of.begin(), of.end(), free[i].cpus[0]);
    });
    if (is_used && sockets[i]) pinning.claims.push_back(std::move(sockets[i]));
  }
  return cores.size() - free.size();
}

}  // namespace

std::optional<PinMode> parse_pin_mode(std::string_view text) {
  if (text == "auto") return PinMode::kAuto;
  if (text == "on") return PinMode::kOn;
  if (text == "off") return PinMode::kOff;
  return std::nullopt;
}

Pinning plan_pinning(const PinRequest& request, const std::string& root) {
  Pinning pinning;
  if (request.mode == PinMode::kOff) return pinning;
  const std::vector<Core> cores = base::cores_of(base::allowed_cpus(root), root);
  const bool fits = uint64_t{request.replica_count} * request.thread_count <= cores.size();
  if (!fits && request.mode == PinMode::kOn) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--pin on: {} cannot each have a core of its own: there {} {} in the "
                            "affinity mask. Take fewer, or --pin off.",
                            needed_threads(request), cores.size() == 1 ? "is" : "are",
                            base::counted(cores.size(), "physical core")));
  }
  if (!fits) {
    pinning.note = fmt::format("not pinned: {}, {}", needed_threads(request),
                               base::counted(cores.size(), "core"));
    return pinning;
  }
  const base::CpuBudget budget = base::cpu_budget(root);
  // What the quota leaves of a period is better spent on whichever core is free.
  if (request.mode == PinMode::kAuto && budget.usable_cores < budget.physical_cores) {
    pinning.note = "not pinned: a CPU quota";
    return pinning;
  }
  const size_t taken = take_free_cores(request, cores, root, pinning);
  if (pinning.cpus.empty() && request.mode == PinMode::kOn) {
    pinning.cpus = base::share_cores(cores, request.replica_count, request.thread_count);
  }
  pinning.note = pinning.cpus.empty() ? fmt::format("not pinned: other runs have {} of {}", taken,
                                                    base::counted(cores.size(), "core"))
                                      : describe(cores, pinning.cpus);
  return pinning;
}

}  // namespace lockstep::launch
