#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

enum class LearningRateScale { kNone, kLinear, kSqrt };

struct Product {
  uint64_t global_batch = 0;
  uint64_t microbatch = 0;
  uint64_t replicas = 1;

  /// Given by the dials, and then global_batch = per_replica * replicas * accumulation. Absent when
  /// the global batch was given directly.
  std::optional<uint64_t> per_replica;
  uint64_t accumulation = 1;

  /// For a global batch given directly: how many samples each replica starts with, [rank]. Empty:
  /// whole microbatches dealt evenly, lower ranks first.
  std::vector<uint64_t> shares;

  std::optional<uint64_t> context;  // of a GPT: tokens of one sequence
  std::optional<uint64_t> updates_per_epoch;
  double learning_rate = 0;  // the peak that is used
  LearningRateScale scale = LearningRateScale::kNone;
  double base_learning_rate = 0;  // as given, when scaled
  uint64_t base_batch = 0;        // when scaled
};

/// The first line of a run, without a line end:
/// "global batch 1024 = 256 per replica x 4 replicas x 1 accumulation step, in microbatches of 32;
/// 977 updates per epoch; learning rate 3e-4 (unscaled)".
std::string product_line(const Product& product);

/// Said when a resume or a dial changed the product: "global batch was 1024 (in runs/a), is now
/// 2048; the learning rate did not follow and stays 3e-4". Absent when the global batch is the
/// same.
[[nodiscard]] std::optional<std::string> product_change_line(uint64_t global_batch_before,
                                                             const Product& now,
                                                             const std::string& place_before);

}  // namespace lockstep::report
