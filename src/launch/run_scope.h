#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>

namespace lockstep::launch {

/// What a run changes in its process, for as long as it lasts: orphans of replicas come to us
/// (child subreaper), more descriptors may be open, 0 to 2 are open.
class RunScope {
 public:
  explicit RunScope(uint32_t replica_count);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  uint64_t open_file_limit() const { return open_file_limit_; }  // as it was, for the replicas

  /// Children that the process had before, and whatever comes from them: none of our business.
  const std::set<pid_t>& foreign_children() const { return foreign_children_; }

 private:
  int was_subreaper_ = 0;
  uint64_t open_file_limit_ = 0;
  std::set<pid_t> foreign_children_;
};

}  // namespace lockstep::launch
