#include "src/launch/oom_kills.h"

#include <fstream>

#include "src/base/cgroup.h"

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

}  // namespace

uint64_t oom_kill_count(const std::string& root) {
  uint64_t count = counter_in(root + "/proc/vmstat");
  for (const base::CgroupFolder& folder : base::cgroups_of(root, "memory")) {
    count +=
        counter_in(folder.path + (folder.version == 2 ? "/memory.events" : "/memory.oom_control"));
  }
  return count;
}

}  // namespace lockstep::launch
