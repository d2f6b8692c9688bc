#include "src/base/topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "src/base/kernel_files.h"

namespace lockstep::base {
namespace {

// The kernel's list form, "0-3,8,10-11". Absent when it is not in that form.
std::optional<std::set<uint32_t>> parse_cpu_list(std::string_view text) {
  std::set<uint32_t> cpus;
  text = trim(text);
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t dash = range.find('-');
    const auto first = trimmed_number<uint32_t>(range.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : trimmed_number<uint32_t>(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kCpuLimit) return std::nullopt;
    for (uint32_t cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpus.end(), cpu);
  }
  return cpus;
}

std::set<uint32_t> affinity_of_thread() {
  // The mask must be at least as long as the kernel's own, which it does not tell.
  for (uint32_t bits = 1024; bits <= kCpuLimit; bits *= 2) {
    struct FreeMask {
      void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
    };
    const std::unique_ptr<cpu_set_t, FreeMask> mask(CPU_ALLOC(bits));
    if (!mask) break;
    const size_t size_bytes = CPU_ALLOC_SIZE(bits);
    if (::sched_getaffinity(0, size_bytes, mask.get()) == 0) {
      std::set<uint32_t> cpus;
      for (uint32_t cpu = 0; cpu < bits; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, mask.get())) cpus.insert(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  throw Error(ErrorCode::kEnvironment,
              fmt::format("cannot tell which CPUs this process may use: sched_getaffinity: {}. "
                          "Give the number of replicas yourself (--replicas N).",
                          std::generic_category().message(errno)));
}

std::set<uint32_t> affinity_in_tree(const std::string& root) {
  const std::string status = read_file(root + "/proc/self/status", kSmallFileBytes);
  const auto list = field(status, "Cpus_allowed_list");
  const auto cpus = list ? parse_cpu_list(*list) : std::nullopt;
  if (!cpus || cpus->empty()) {
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot tell which CPUs this process may use: {} has no usable line "
                            "Cpus_allowed_list (found '{}').",
                            quote_path(root + "/proc/self/status"), list.value_or("")));
  }
  return *cpus;
}

std::string prefix_of(const std::string& root) { return root == "/" ? "" : root; }

std::optional<std::set<uint32_t>> read_cpu_list(const std::string& path) {
  const auto text = read_if_there(path);
  return text ? parse_cpu_list(*text) : std::nullopt;
}

std::optional<uint32_t> read_small_number(const std::string& path) {
  const auto text = read_if_there(path);
  return text ? trimmed_number<uint32_t>(*text) : std::nullopt;
}

// A core by its package and its number there, or by its lowest CPU.
using CoreName = std::pair<uint32_t, uint32_t>;

CoreName core_of(uint32_t cpu, const std::string& folder) {
  auto siblings = read_cpu_list(folder + "core_cpus_list");
  if (!siblings) siblings = read_cpu_list(folder + "thread_siblings_list");  // before Linux 5.3
  constexpr uint32_t kByCpu = UINT32_MAX;
  if (siblings && siblings->contains(cpu)) return {kByCpu, *siblings->begin()};
  const auto core = read_small_number(folder + "core_id");
  const auto package = read_small_number(folder + "physical_package_id");
  if (core && package) return {*package, *core};
  return {kByCpu, cpu};
}

// [cpu]; empty where the kernel shows no nodes.
std::map<uint32_t, uint32_t> nodes_of_cpus(const std::string& prefix) {
  const std::string folder = prefix + "/sys/devices/system/node/";
  std::map<uint32_t, uint32_t> nodes;
  // A list of numbers in the same form.
  for (const uint32_t node : read_cpu_list(folder + "online").value_or(std::set<uint32_t>())) {
    const auto cpus = read_cpu_list(fmt::format("{}node{}/cpulist", folder, node));
    for (const uint32_t cpu : cpus.value_or(std::set<uint32_t>())) nodes[cpu] = node;
  }
  return nodes;
}

void take(const Core& core, std::vector<uint32_t>& group) {
  group.insert(group.end(), core.cpus.begin(), core.cpus.end());
}

// The index of the first core of each group; each group within one node. Empty: they do not fit.
std::vector<size_t> starts_within_nodes(const std::vector<Core>& cores, uint32_t group_count,
                                        uint32_t cores_per_group) {
  std::vector<size_t> starts;
  size_t at = 0;
  while (starts.size() < group_count && at + cores_per_group <= cores.size()) {
    size_t last = at + cores_per_group - 1;
    if (cores[at].node == cores[last].node) {
      starts.push_back(at);
      at = last + 1;
    } else {
      while (cores[last - 1].node == cores[last].node) --last;
      at = last;  // the next node
    }
  }
  if (starts.size() < group_count) starts.clear();
  return starts;
}

}  // namespace

std::set<uint32_t> allowed_cpus(const std::string& root) {
  const std::string prefix = prefix_of(root);
  const std::set<uint32_t> mask = prefix.empty() ? affinity_of_thread() : affinity_in_tree(root);
  const auto online = read_cpu_list(prefix + "/sys/devices/system/cpu/online");
  std::set<uint32_t> both;
  if (online) {
    std::set_intersection(mask.begin(), mask.end(), online->begin(), online->end(),
                          std::inserter(both, both.end()));
  }
  return both.empty() ? mask : both;
}

std::vector<Core> cores_of(const std::set<uint32_t>& cpus, const std::string& root) {
  const std::string prefix = prefix_of(root);
  const auto nodes = nodes_of_cpus(prefix);
  std::map<CoreName, Core> by_name;
  for (const uint32_t cpu : cpus) {
    const std::string folder =
        fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/", prefix, cpu);
    Core& core = by_name[core_of(cpu, folder)];
    core.cpus.push_back(cpu);
    if (const auto node = nodes.find(cpu); node != nodes.end()) {
      core.node = node->second;
    } else if (nodes.empty()) {
      core.node = read_small_number(folder + "physical_package_id").value_or(0);
    }
  }
  std::vector<Core> cores;
  for (auto& entry : by_name) cores.push_back(std::move(entry.second));
  std::sort(cores.begin(), cores.end(), [](const Core& left, const Core& right) {
    return std::pair(left.node, left.cpus[0]) < std::pair(right.node, right.cpus[0]);
  });
  return cores;
}

std::vector<std::vector<uint32_t>> share_cores(const std::vector<Core>& cores, uint32_t group_count,
                                               uint32_t cores_per_group) {
  if (group_count == 0 || cores_per_group == 0 ||
      uint64_t{group_count} * cores_per_group > cores.size()) {
    return {};
  }
  std::vector<size_t> starts = starts_within_nodes(cores, group_count, cores_per_group);
  for (size_t i = starts.size(); i < group_count; ++i) starts.push_back(i * cores_per_group);
  std::vector<std::vector<uint32_t>> groups(group_count);  // [group]
  for (uint32_t group = 0; group < group_count; ++group) {
    for (uint32_t i = 0; i < cores_per_group; ++i) take(cores[starts[group] + i], groups[group]);
    std::sort(groups[group].begin(), groups[group].end());
  }
  return groups;
}

std::string format_cpu_list(const std::set<uint32_t>& cpus) {
  std::string text;
  for (auto first = cpus.begin(); first != cpus.end();) {
    auto last = first;
    while (std::next(last) != cpus.end() && *std::next(last) == *last + 1) ++last;
    if (!text.empty()) text += ",";
    text += last == first ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
    first = std::next(last);
  }
  return text;
}

}  // namespace lockstep::base
