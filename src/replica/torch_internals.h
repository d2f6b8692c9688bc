#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

// The one place that touches what LibTorch exports without documenting it. Written against 2.13.

namespace lockstep::internal {

/// Calls `hook(parameter)` after each accumulation into the parameter's .grad(), on the thread that
/// runs backward. Replaces a hook set before.
void set_gradient_hook(const torch::Tensor& parameter,
                       std::function<void(const torch::Tensor&)> hook);
void remove_gradient_hook(const torch::Tensor& parameter);

/// Seeds the default generator (of which LibTorch uses 32 bits).
void seed_default_generator(uint32_t seed);

/// Deterministic algorithms on, fill of uninitialised memory off, TorchScript profiling off (its
/// first calls give other bits than later ones).
void make_deterministic();

void clear_autocast_cache();

/// Tells autograd that the tensor's memory was changed behind its back.
void bump_version(const torch::Tensor& tensor);

/// True where a write to one element changes another: of the same tensor (expanded ones), or of
/// two.
bool overlaps_itself(const torch::Tensor& tensor);
bool overlap(const torch::Tensor& left, const torch::Tensor& right);

/// What decides bits beside the inputs: compared around every microbatch, and between the replicas
/// (rule 11). Plain data: it lies in shared memory.
struct ContextWord {
  int64_t threads;
  int64_t float_control;  // rounding, flush to zero, denormals are zero
  int64_t default_dtype;
  int64_t matmul_precision;
  int64_t attention;  // bits: flash, memory-efficient, math
  int64_t one_dnn;
  int64_t deterministic;
  int64_t autocast;  // bit 0: on; the dtype above it

  static ContextWord now();

  struct Difference {
    std::string name;
    int64_t here = 0;
    int64_t there = 0;
  };
  /// The first field that differs.
  std::optional<Difference> difference(const ContextWord& there) const;
};

}  // namespace lockstep::internal
