#pragma once

#include <cstdint>
#include <memory>

namespace lockstep {

namespace internal {
class GroupState;
}

struct GroupOptions {
  /// CPU threads per microbatch; 0: what the launcher says, or 1 when the program runs alone. Part
  /// of the recipe: another number of threads gives other last bits.
  uint32_t threads = 0;
};

/// The replicas of one run, as this process sees them. A value: copies refer to the same group.
/// One group per process; not for use by several threads at once.
class Group {
 public:
  /// Joins the group that the launcher (`lockstep run`, `lockstep train`) has started this process
  /// in; started alone, makes a group of one. Sets what exactness needs before LibTorch computes
  /// anything (thread count, MKL_CBWR, deterministic algorithms): call it first in main().
  /// Throws Error(kEnvironment) when launcher and program do not fit together, and when another
  /// launcher (mpirun, srun, torchrun) says that there are several ranks.
  static Group from_environment(GroupOptions options = {});

  /// This replica's number, in [0, size()).
  uint32_t rank() const;
  /// Replicas that were started. Some may have died since.
  uint32_t size() const;
  uint32_t threads() const;

  const std::shared_ptr<internal::GroupState>& state() const { return state_; }

 private:
  explicit Group(std::shared_ptr<internal::GroupState> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::GroupState> state_;
};

}  // namespace lockstep
