#include "src/base/system.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/cgroup.h"
#include "src/base/file.h"
#include "src/base/number.h"

namespace lockstep::base {
namespace {

constexpr uint64_t kSmallFileBytes = uint64_t{1} << 24;
constexpr uint32_t kCpuLimit = 1u << 16;  // far above what any kernel supports (8192)
// v1 writes "no limit" as the largest multiple of the page size.
constexpr uint64_t kNoMemoryLimit = uint64_t{1} << 62;

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <typename Number>
std::optional<Number> trimmed_number(std::string_view text) {
  return number_from<Number>(trim(text));
}

// Most of these files exist on some machines only, and some vanish while a container is torn down.
std::optional<std::string> read_if_there(const std::string& path) {
  try {
    return read_file(path, kSmallFileBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

template <typename Number>
std::optional<Number> read_number(const std::string& path) {
  const auto text = read_if_there(path);
  return text ? trimmed_number<Number>(*text) : std::nullopt;
}

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

// The value of a line "NAME: VALUE" or "NAME VALUE" in a file of such lines.
std::optional<std::string_view> field(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    std::string_view line = lines.substr(0, end);
    lines = end == std::string_view::npos ? std::string_view() : lines.substr(end + 1);
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(':')) return trim(line.substr(1));
    if (line.starts_with(' ')) return trim(line);
  }
  return std::nullopt;
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

// Cores that share nothing but caches. Where the topology is not shown each CPU counts as one.
uint32_t count_physical(const std::string& prefix, const std::set<uint32_t>& cpus) {
  std::set<uint32_t> cores;  // each by its lowest sibling
  for (const uint32_t cpu : cpus) {
    const std::string folder =
        fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/", prefix, cpu);
    auto list = read_if_there(folder + "core_cpus_list");
    if (!list) list = read_if_there(folder + "thread_siblings_list");  // before Linux 5.3
    const auto siblings = list ? parse_cpu_list(*list) : std::nullopt;
    cores.insert(siblings && siblings->contains(cpu) ? *siblings->begin() : cpu);
  }
  return static_cast<uint32_t>(cores.size());
}

struct Quota {
  double cores = 0;
  std::string where;
};

// "50000 100000" or "max 100000".
std::optional<Quota> quota_of(const CgroupFolder& cgroup) {
  std::optional<double> quota;
  std::optional<double> period;
  std::string_view name = "cpu.max";
  if (cgroup.version == 2) {
    const std::string text = read_if_there(cgroup.path + "/cpu.max").value_or("");
    const std::string_view words = trim(text);
    const size_t blank = words.find(' ');
    quota = trimmed_number<double>(words.substr(0, blank));
    if (blank == std::string_view::npos) {
      period = 100000;
    } else {
      period = trimmed_number<double>(words.substr(blank));
    }
  } else {
    name = "cpu.cfs_quota_us";
    quota = read_number<double>(cgroup.path + "/cpu.cfs_quota_us");
    period = read_number<double>(cgroup.path + "/cpu.cfs_period_us");
  }
  if (!quota || !period || !(*quota > 0) || !(*period > 0)) return std::nullopt;  // -1: none
  return Quota{*quota / *period, fmt::format("{} of cgroup {}", name, quote_path(cgroup.name))};
}

std::string plural(uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string explain(const CpuBudget& budget, const std::optional<Quota>& quota) {
  std::string text = plural(budget.physical_cores, "physical core", "physical cores");
  if (budget.affinity_cores != budget.physical_cores) {
    text += fmt::format(" ({} with SMT)", plural(budget.affinity_cores, "thread", "threads"));
  }
  text += " in the affinity mask; ";
  if (!quota) return text + "no CPU quota";
  return text + fmt::format("CPU quota of {:.4g} {} ({})", quota->cores,
                            quota->cores == 1 ? "core" : "cores", quota->where);
}

// Absent where this cgroup has no limit.
std::optional<MemoryBudget> room_in(const CgroupFolder& cgroup, std::string_view limit_name) {
  const bool version_2 = cgroup.version == 2;
  const std::string prefix = cgroup.path + "/";
  const auto limit = read_number<uint64_t>(prefix + std::string(limit_name));
  if (!limit || *limit >= kNoMemoryLimit) return std::nullopt;  // "max" is no number
  const auto usage =
      read_number<uint64_t>(prefix + (version_2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!usage) return std::nullopt;
  const std::string statistics = read_if_there(prefix + "memory.stat").value_or("");
  const auto cache_text = field(statistics, version_2 ? "inactive_file" : "total_inactive_file");
  const uint64_t cache = cache_text ? trimmed_number<uint64_t>(*cache_text).value_or(0) : 0;
  const uint64_t used = *usage - std::min(*usage, cache);
  MemoryBudget room;
  room.available_bytes = *limit - std::min(*limit, used);
  room.limited_by = fmt::format("{} of cgroup {}", limit_name, quote_path(cgroup.name));
  room.reason = fmt::format("{} is {}, of which {} are in use", room.limited_by,
                            format_bytes(*limit), format_bytes(used));
  return room;
}

MemoryBudget room_in_machine(const std::string& prefix) {
  const std::string path = prefix + "/proc/meminfo";
  const std::string lines = read_if_there(path).value_or("");
  auto text = field(lines, "MemAvailable");
  if (text && text->ends_with(" kB")) text->remove_suffix(3);
  const auto kib = text ? trimmed_number<uint64_t>(*text) : std::nullopt;
  if (!kib || *kib > (std::numeric_limits<uint64_t>::max() >> 10)) {
    throw Error(
        ErrorCode::kEnvironment,
        fmt::format("cannot tell how much memory is free: {} has no usable line MemAvailable "
                    "(found '{}'). Is /proc mounted?",
                    quote_path(path), text.value_or("")));
  }
  MemoryBudget room;
  room.available_bytes = *kib << 10;
  room.limited_by = "MemAvailable";
  room.reason =
      fmt::format("{} of this machine's memory are available", format_bytes(room.available_bytes));
  return room;
}

}  // namespace

CpuBudget cpu_budget(const std::string& root) {
  const std::string prefix = root == "/" ? "" : root;
  const std::set<uint32_t> cpus = prefix.empty() ? affinity_of_thread() : affinity_in_tree(root);
  CpuBudget budget;
  budget.affinity_cores = static_cast<uint32_t>(cpus.size());
  budget.physical_cores = count_physical(prefix, cpus);
  std::optional<Quota> smallest;
  for (const CgroupFolder& cgroup : cgroups_of(root, "cpu")) {
    auto quota = quota_of(cgroup);
    if (quota && (!smallest || quota->cores < smallest->cores)) smallest = std::move(quota);
  }
  budget.usable_cores = budget.physical_cores;
  if (smallest) {
    budget.quota_cores = smallest->cores;
    // Down, and no less than one: a thread more than the quota stands still for part of each
    // period.
    const double whole = std::clamp(std::floor(smallest->cores), 1.0, double{kCpuLimit});
    budget.usable_cores = std::min(budget.physical_cores, static_cast<uint32_t>(whole));
  }
  budget.reason = explain(budget, smallest);
  return budget;
}

MemoryBudget memory_budget(const std::string& root) {
  MemoryBudget least = room_in_machine(root == "/" ? "" : root);
  for (const CgroupFolder& cgroup : cgroups_of(root, "memory")) {
    // Above memory.high the kernel does not kill but slows the process to a crawl.
    const std::vector<std::string_view> limits =
        cgroup.version == 2 ? std::vector<std::string_view>{"memory.max", "memory.high"}
                            : std::vector<std::string_view>{"memory.limit_in_bytes"};
    for (const std::string_view limit : limits) {
      auto room = room_in(cgroup, limit);
      if (room && room->available_bytes < least.available_bytes) least = std::move(*room);
    }
  }
  least.available_bytes -= least.available_bytes / 20;
  least.reason += "; 5 % are kept back";
  return least;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1024) return plural(bytes, "byte", "bytes");
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e12) return "unknown";
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1000);
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  const uint64_t minutes = (whole + 30) / 60;
  if (minutes < 24 * 60) return fmt::format("{}h{:02}m", minutes / 60, minutes % 60);
  const uint64_t hours = (whole + 1800) / 3600;
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

}  // namespace lockstep::base
