#include "lockstep/batches.h"

#include <algorithm>
#include <limits>
#include <string>

#include "lockstep/error.h"
#include "src/base/random.h"

namespace lockstep {
namespace {

constexpr uint64_t kOrderKey = 0x6f72646572;  // "order": unrelated to the keys of other uses
constexpr uint64_t kMostMicrobatches = 65'535;

uint64_t divide_up(uint64_t value, uint64_t by) { return value / by + (value % by != 0); }

void check_options(uint64_t sample_count, const BatchesOptions& options) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::kUsage, message); };
  if (sample_count == 0) refuse("the data set is empty: at least 1 sample is needed");
  if (options.global_batch == 0) refuse("global batch 0: at least 1 sample makes a step");
  if (options.microbatch == 0) refuse("microbatch 0: at least 1 sample makes a microbatch");
  if (options.epochs == 0 && options.steps == 0) {
    refuse("neither epochs nor steps are given: the run would have no end");
  }
  const uint64_t count = divide_up(options.global_batch, options.microbatch);
  if (count > kMostMicrobatches) {
    refuse("global batch " + std::to_string(options.global_batch) + " in microbatches of " +
           std::to_string(options.microbatch) + " makes " + std::to_string(count) +
           " microbatches, more than " + std::to_string(kMostMicrobatches) +
           ": take larger microbatches");
  }
}

uint64_t multiply_or_most(uint64_t left, uint64_t right) {
  uint64_t product = 0;
  return __builtin_mul_overflow(left, right, &product) ? std::numeric_limits<uint64_t>::max()
                                                       : product;
}

}  // namespace

Batches::Batches(uint64_t sample_count, BatchesOptions options)
    : sample_count_(sample_count), options_(options) {
  check_options(sample_count, options);
  steps_per_epoch_ = divide_up(sample_count, options.global_batch);
  step_count_ = options.steps;
  if (options.epochs != 0) {
    const uint64_t by_epochs = multiply_or_most(steps_per_epoch_, options.epochs);
    step_count_ = options.steps == 0 ? by_epochs : std::min(options.steps, by_epochs);
  }
}

Batch Batches::batch(uint64_t step) const {
  if (step >= step_count_) {
    throw Error(ErrorCode::kUsage, "step " + std::to_string(step) + " of a run of " +
                                       std::to_string(step_count_) + " steps (counted from 0)");
  }
  return {this, step};
}

void Batches::start_at(uint64_t step) {
  if (step > step_count_) {
    throw Error(ErrorCode::kUsage, "cannot start at step " + std::to_string(step) +
                                       ": the run has " + std::to_string(step_count_) + " steps");
  }
  first_step_ = step;
}

uint64_t Batches::sample_at(uint64_t epoch, uint64_t index) const {
  if (!options_.shuffle) return index;
  return base::permute_index(base::mix_key(options_.seed, kOrderKey, epoch), sample_count_, index);
}

Batch::Batch(const Batches* batches, uint64_t step)
    : batches_(batches), step_(step), epoch_(step / batches->steps_per_epoch()) {
  const uint64_t global_batch = batches->options().global_batch;
  begin_ = step % batches->steps_per_epoch() * global_batch;
  // Compared by what is left: begin + global_batch could overflow.
  end_ = begin_ + std::min(global_batch, batches->sample_count() - begin_);
}

uint32_t Batch::microbatch_count() const {
  return static_cast<uint32_t>(divide_up(size(), batches_->options().microbatch));
}

uint32_t Batch::microbatch_stride() const {
  const BatchesOptions& options = batches_->options();
  return static_cast<uint32_t>(divide_up(options.global_batch, options.microbatch));
}

uint64_t Batch::seed() const { return batches_->options().seed; }

uint64_t Batch::microbatch_size(uint32_t microbatch) const {
  if (microbatch >= microbatch_count()) {
    throw Error(ErrorCode::kUsage, "microbatch " + std::to_string(microbatch) + " of a batch of " +
                                       std::to_string(microbatch_count()) + " (counted from 0)");
  }
  const uint64_t size_of_full = batches_->options().microbatch;
  return std::min(size_of_full, size() - microbatch * size_of_full);
}

std::vector<size_t> Batch::indices(uint32_t microbatch) const {
  std::vector<size_t> indices(microbatch_size(microbatch));
  const uint64_t first = begin_ + microbatch * batches_->options().microbatch;
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = batches_->sample_at(epoch_, first + i);
  return indices;
}

}  // namespace lockstep
