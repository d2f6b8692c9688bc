#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

/// A cgroup that this process is in, or one above it.
struct CgroupFolder {
  int version = 2;   // 1 or 2
  std::string path;  // where its files are
  std::string name;  // as /proc/self/cgroup calls it, for messages
};

/// The cgroups whose limits on `controller` ("cpu", "memory") hold for this process, of both
/// versions, the innermost first, up to the root of each mount. Found by way of
/// /proc/self/mountinfo below `root`, so any mount point will do. Empty where there are none.
std::vector<CgroupFolder> cgroups_of(const std::string& root, std::string_view controller);

}  // namespace lockstep::base
