#include "src/launch/run_scope.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "src/launch/process.h"

namespace lockstep::launch {
namespace {

// Where the caller closed 0, 1 or 2, a pipe of ours would get that number and be taken for a
// standard stream.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return;
  }
}

void set_open_file_limit(uint64_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

RunScope::RunScope(uint32_t replica_count) {
  open_standard_streams();
  for (const pid_t pid : descendants(::getpid(), {})) foreign_children_.insert(pid);
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) open_file_limit_ = limit.rlim_cur;
  constexpr uint64_t kPerReplica = 12;
  constexpr uint64_t kOthers = 2048;  // arenas, the caller's own
  const uint64_t needed = kPerReplica * replica_count + kOthers;
  if (needed > open_file_limit_) set_open_file_limit(needed);
}

RunScope::~RunScope() {
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
  if (open_file_limit_ != 0) set_open_file_limit(open_file_limit_);
}

}  // namespace lockstep::launch
