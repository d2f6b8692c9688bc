#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace lockstep {

/// How a data set becomes a sequence of global batches.
struct BatchesOptions {
  /// Samples of one optimizer step, over all replicas.
  uint64_t global_batch = 1;
  /// Samples of one forward and backward pass. Part of the recipe: another microbatch gives the
  /// same result in real numbers, not in bits. At most 65,535 microbatches make a global batch.
  uint64_t microbatch = 1;
  /// Passes over the data; 0: `steps` decides.
  uint64_t epochs = 1;
  /// Optimizer steps, over as many epochs as that takes; 0: `epochs` decides. When both are given
  /// the run ends at whichever comes first.
  uint64_t steps = 0;
  /// Of the order of the samples and of the random numbers drawn in the microbatches.
  uint64_t seed = 0;
  /// A fresh permutation in every epoch; false: the order of the data.
  bool shuffle = true;
};

class Batches;

/// One global batch: which samples, in which microbatches. A value; cheap to copy.
class Batch {
 public:
  /// Counted from 0 over the whole run.
  uint64_t step() const { return step_; }
  /// Counted from 0.
  uint64_t epoch() const { return epoch_; }
  /// Samples in this batch; the last batch of an epoch may be short.
  uint64_t size() const { return end_ - begin_; }
  /// Microbatches in this batch; the last may be short.
  uint32_t microbatch_count() const;
  /// Microbatches of a full batch of this run: what random numbers are counted by.
  uint32_t microbatch_stride() const;
  uint64_t seed() const;

  /// The samples of microbatch m, in order: indices into the data set, in [0, size of the data).
  /// Throws Error(kUsage) when m is not below microbatch_count().
  std::vector<size_t> indices(uint32_t microbatch) const;
  uint64_t microbatch_size(uint32_t microbatch) const;

 private:
  friend class Batches;
  Batch(const Batches* batches, uint64_t step);

  const Batches* batches_;
  uint64_t step_;
  uint64_t epoch_;
  uint64_t begin_;  // [begin, end) of the epoch's permutation
  uint64_t end_;
};

/// All global batches of a run. A pure function of (seed, epoch, index): nothing is padded, dropped
/// or repeated, and the state is the step number alone. Which replica computes which microbatch
/// has no part in it. The object must outlive the Batch values it hands out.
class Batches {
 public:
  /// `sample_count`: size of the data set, at least 1. Throws Error(kUsage) for values that
  /// cannot work, with both numbers.
  Batches(uint64_t sample_count, BatchesOptions options);

  const BatchesOptions& options() const { return options_; }
  uint64_t sample_count() const { return sample_count_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// Steps of the whole run.
  uint64_t step_count() const { return step_count_; }
  Batch batch(uint64_t step) const;

  /// Iterates over the batches from the first step (see start_at) to the last.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = const Batch*;
    using reference = Batch;

    Batch operator*() const { return batches_->batch(step_); }
    Iterator& operator++() {
      ++step_;
      return *this;
    }
    friend bool operator==(const Iterator& left, const Iterator& right) {
      return left.step_ == right.step_;
    }

   private:
    friend class Batches;
    Iterator(const Batches* batches, uint64_t step) : batches_(batches), step_(step) {}
    const Batches* batches_;
    uint64_t step_;
  };

  Iterator begin() const { return {this, first_step_}; }
  Iterator end() const { return {this, step_count_}; }

  /// The step that begin() starts with; at most step_count().
  void start_at(uint64_t step);

  /// The sample at place `index` of the epoch's order; index < sample_count().
  uint64_t sample_at(uint64_t epoch, uint64_t index) const;

 private:
  uint64_t sample_count_;
  BatchesOptions options_;
  uint64_t steps_per_epoch_;
  uint64_t step_count_;
  uint64_t first_step_ = 0;
};

}  // namespace lockstep
