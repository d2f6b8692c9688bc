#include "src/launch/oom_kills.h"

#include <fstream>
#include <sstream>

namespace lockstep::launch {
namespace {

// The number behind `oom_kill` in a file of "name value" lines; 0 where there is none.
uint64_t counter_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

bool has_controller(const std::string& list, const std::string& controller) {
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == controller) return true;
  }
  return false;
}

// Of one line of /proc/self/cgroup, "ID:CONTROLLERS:PATH". Inside a container the path may be one
// that only the host can see, and the container's own counters lie at the top.
uint64_t count_of(const std::string& root, const std::string& line) {
  const size_t first = line.find(':');
  const size_t second = line.find(':', first + 1);
  if (second == std::string::npos) return 0;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  const std::string path = line.substr(second + 1);
  const std::string cgroups = root + "/sys/fs/cgroup";
  uint64_t count = 0;
  if (controllers.empty()) {
    for (const std::string& top : {cgroups, cgroups + "/unified"}) {
      count += counter_in(top + path + "/memory.events");
    }
  } else if (has_controller(controllers, "memory")) {
    count = counter_in(cgroups + "/memory" + path + "/memory.oom_control");
    if (count == 0) count = counter_in(cgroups + "/memory/memory.oom_control");
  }
  return count;
}

}  // namespace

uint64_t oom_kill_count(const std::string& root) {
  uint64_t count = counter_in(root + "/proc/vmstat");
  std::ifstream cgroups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) count += count_of(root, line);
  return count;
}

}  // namespace lockstep::launch
