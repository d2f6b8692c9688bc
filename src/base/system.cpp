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
#include "src/base/counted.h"
#include "src/base/file.h"
#include "src/base/kernel_files.h"
#include "src/base/topology.h"

namespace lockstep::base {
namespace {

// v1 writes "no limit" as the largest multiple of the page size.
constexpr uint64_t kNoMemoryLimit = uint64_t{1} << 62;

template <typename Number>
std::optional<Number> read_number(const std::string& path) {
  const auto text = read_if_there(path);
  return text ? trimmed_number<Number>(*text) : std::nullopt;
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

std::string explain(const CpuBudget& budget, const std::optional<Quota>& quota) {
  std::string text = counted(budget.physical_cores, "physical core");
  if (budget.affinity_cores != budget.physical_cores) {
    text += fmt::format(" ({} with SMT)", counted(budget.affinity_cores, "thread"));
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
  const std::set<uint32_t> cpus = allowed_cpus(root);
  CpuBudget budget;
  budget.affinity_cores = static_cast<uint32_t>(cpus.size());
  budget.physical_cores = static_cast<uint32_t>(cores_of(cpus, root).size());
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
  if (bytes < 1024) return counted(bytes, "byte");
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
