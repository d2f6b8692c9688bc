#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

// Which cores this process may use, and how they lie to each other. `root`: see system.h.

namespace lockstep::base {

/// A physical core, as far as this process may use it.
struct Core {
  uint32_t node = 0;           // NUMA node; the package where the kernel shows no nodes
  std::vector<uint32_t> cpus;  // its SMT threads in the affinity mask, ascending; not empty
};

/// The CPUs in the affinity mask of the calling thread that are online. Throws Error(kEnvironment).
std::set<uint32_t> allowed_cpus(const std::string& root = "/");

/// The cores of these CPUs, node by node, in each by their lowest CPU. Where the topology is not
/// shown each CPU is a core.
std::vector<Core> cores_of(const std::set<uint32_t>& cpus, const std::string& root = "/");

/// For each of `group_count` groups the CPUs of `cores_per_group` cores that no other group has.
/// Groups fill a node before the next; none lies in two nodes unless they would not fit otherwise.
/// Empty where there are not enough cores.
std::vector<std::vector<uint32_t>> share_cores(const std::vector<Core>& cores, uint32_t group_count,
                                               uint32_t cores_per_group);

/// The kernel's list form, "0-3,8".
std::string format_cpu_list(const std::set<uint32_t>& cpus);

}  // namespace lockstep::base
