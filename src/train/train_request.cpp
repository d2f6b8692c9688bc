#include "src/train/train_request.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/exchange/control.h"

namespace lockstep::train {
namespace {

constexpr uint64_t kMostSamples = uint64_t{1} << 40;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, message); }

uint64_t product_of_dials(const TrainOptions& options, uint64_t replicas) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(*options.per_replica, replicas, &product) ||
      __builtin_mul_overflow(product, options.accumulate, &product) || product > kMostSamples) {
    refuse(
        fmt::format("--per-replica {} x {} replicas x --accumulate {} is more than the {} samples "
                    "that a global batch may have.",
                    *options.per_replica, replicas, options.accumulate, kMostSamples));
  }
  return product;
}

void replicas_from_batch(TrainRequest& request) {
  TrainOptions& options = request.options;
  const uint64_t one = product_of_dials(options, 1);
  const uint64_t replicas = options.global_batch / one;
  if (options.global_batch % one != 0 || replicas > exchange::kMaxReplicas) {
    refuse(fmt::format(
        "--global-batch {} = --per-replica {} x replicas x --accumulate {} holds for "
        "no whole number of replicas from 1 to {}.",
        options.global_batch, *options.per_replica, options.accumulate, exchange::kMaxReplicas));
  }
  options.replicas = static_cast<uint32_t>(replicas);
  options.replica_reason = "global batch / (per replica x accumulation steps)";
  request.has_replicas = true;
}

void settle_dials(TrainRequest& request) {
  TrainOptions& options = request.options;
  if (request.has_global_batch && !request.has_replicas) return replicas_from_batch(request);
  if (!request.has_replicas) return;
  const uint64_t product = product_of_dials(options, options.replicas);
  if (request.has_global_batch && product != options.global_batch) {
    refuse(fmt::format(
        "--global-batch {} contradicts --per-replica {} x {} replicas x --accumulate "
        "{} = {}. Give the global batch or the dials.",
        options.global_batch, *options.per_replica, options.replicas, options.accumulate, product));
  }
  options.global_batch = product;
}

double scaled_learning_rate(const TrainOptions& options) {
  const double rate = options.base_learning_rate;
  if (options.learning_rate_scaling == LearningRateScaling::kNone) return rate;
  const double factor =
      static_cast<double>(options.global_batch) / static_cast<double>(options.base_batch);
  return options.learning_rate_scaling == LearningRateScaling::kLinear ? rate * factor
                                                                       : rate * std::sqrt(factor);
}

void check_drill_ranks(const TrainOptions& options) {
  for (const std::string& drill : options.kills) {
    uint32_t rank = 0;
    std::from_chars(drill.data(), drill.data() + drill.size(),
                    rank);  // read_drills() has checked it
    if (rank >= options.replicas) {
      refuse(fmt::format("--kill {}: there is no rank {}; {} {} ranks 0 to {}.", drill, rank,
                         options.replicas, options.replicas == 1 ? "replica has" : "replicas have",
                         options.replicas - 1));
    }
  }
}

void check_fixed_parts(const TrainOptions& options) {
  const uint64_t microbatches = microbatch_count(options);
  if (options.averaging || microbatches >= options.replicas) return;
  refuse(
      fmt::format("--averaging off gives every replica its own part of each step, but {} in "
                  "microbatches of {} makes {} of them for {} replicas. Take a larger global batch "
                  "or fewer replicas.",
                  options.global_batch, options.microbatch, microbatches, options.replicas));
}

}  // namespace

void settle_batch(TrainRequest& request) {
  TrainOptions& options = request.options;
  if (options.per_replica) settle_dials(request);
  options.learning_rate = scaled_learning_rate(options);
  if (!std::isfinite(options.learning_rate)) {
    refuse(fmt::format("--lr {} scaled from global batch {} to {} is no finite number.",
                       options.base_learning_rate, options.base_batch, options.global_batch));
  }
  if (!request.has_replicas) return;
  check_drill_ranks(options);
  check_fixed_parts(options);
}

}  // namespace lockstep::train
