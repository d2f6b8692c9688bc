#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/batches.h"
#include "lockstep/group.h"

namespace lockstep {

namespace internal {
class ReplicaImpl;
}

/// Values that a microbatch may report beside its loss; each is added over the batch.
inline constexpr size_t kMetricCount = 8;

struct DistributedDataParallelOptions {
  /// false: nothing is exchanged, each replica applies the mean of its own fixed part of the batch,
  /// and the copies separate on the first step. To show why averaging is what makes this work.
  bool averaging = true;
  /// In the first step every replica computes one microbatch twice and one that all others compute
  /// too, and leaf hashes are compared, so that a model that is not a pure function of (parameters,
  /// samples, step, microbatch) is found at once. Costs up to two microbatches, once.
  bool audit_first_step = true;
  /// Repeats the audit every so many steps; 0: never.
  uint64_t audit_interval = 0;
  /// Size of the parts in which the gradient is reduced; 0: chosen by size and replicas. Has no
  /// influence on any bit of the result.
  uint64_t bucket_bytes = 0;
  /// Claims microbatches in an order shuffled by this seed instead of in runs; 0: off. Has no
  /// influence on any bit of the result; tests show it.
  uint64_t shuffle_claims = 0;
};

/// Where the time of one step went on this replica, in seconds.
struct StepTimings {
  double total = 0;            // from the start of the microbatch loop to the end of average()
  double compute = 0;          // in microbatches, with the merging of gradients
  double wait = 0;             // for other replicas
  double reduce = 0;           // reducing buckets and committing
  uint32_t microbatches = 0;   // that this replica computed
  uint32_t stolen = 0;         // of these, taken from another replica's share
  uint64_t bytes_reduced = 0;  // read and written by this replica's share of the reduction
};

/// What one optimizer step's averaging gave; equal on all replicas but for `timings`.
struct Step {
  uint64_t number = 0;       // counted from 1
  double loss = 0;           // sum over the batch divided by count
  double count = 0;          // the denominator
  double gradient_norm = 0;  // Euclidean norm of the mean gradient; NaN or infinite where it is
  std::array<double, kMetricCount> metrics{};  // sums over the batch
  uint32_t members = 0;                        // replicas that go on to the next step
  StepTimings timings;
};

class DistributedDataParallel;

/// One microbatch that this replica is to compute now.
class Microbatch {
 public:
  uint32_t index() const { return index_; }
  const std::vector<size_t>& indices() const { return indices_; }
  size_t size() const { return indices_.size(); }
  /// Reports a value that is added over the batch into Step::metrics[which]; which < kMetricCount.
  void record(size_t which, double value) const;
  /// True for a repetition that only checks purity; its values count nowhere.
  bool is_audit() const { return is_audit_; }

 private:
  friend class internal::ReplicaImpl;
  uint32_t index_ = 0;
  bool is_audit_ = false;
  std::vector<size_t> indices_;
  internal::ReplicaImpl* replica_ = nullptr;
};

/// The microbatches of a batch as they come to this replica. For one range-for loop. A microbatch
/// is complete when the loop goes on to the next; leaving the loop by break or an exception gives
/// the open one back for others to compute.
class MicrobatchRange {
 public:
  class Iterator {
   public:
    const Microbatch& operator*() const;
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const;

   private:
    friend class MicrobatchRange;
    explicit Iterator(internal::ReplicaImpl* replica) : replica_(replica) {}
    internal::ReplicaImpl* replica_;
  };

  MicrobatchRange(const MicrobatchRange&) = delete;
  MicrobatchRange& operator=(const MicrobatchRange&) = delete;
  ~MicrobatchRange();

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class DistributedDataParallel;
  explicit MicrobatchRange(std::shared_ptr<internal::ReplicaImpl> replica)
      : replica_(std::move(replica)) {}
  std::shared_ptr<internal::ReplicaImpl> replica_;
};

/// What a function that evaluates one microbatch returns.
struct EvaluationPart {
  double loss = 0;                             // sum, not a mean
  double count = 0;                            // what the sum is to be divided by
  std::array<double, kMetricCount> metrics{};  // sums
};

/// What evaluate() returns; equal on all replicas, for any number of them, to the last bit.
struct Evaluation {
  double loss = 0;  // sum / count
  double count = 0;
  std::array<double, kMetricCount> metrics{};  // sums
};

/// Keeps the copies of one model on all replicas equal: each computes gradients of its own
/// microbatches, average() gives every replica the same mean, bit for bit the one that a single
/// replica would have computed, whoever computed what.
///
/// On construction the parameters are moved into one flat piece of memory per dtype (the tensors
/// stay the same objects); their values are taken from rank 0. All replicas must construct it with
/// the same structure. The module must outlive it. Not thread safe.
///
/// Copies that come to differ end the run in the next step; after the last update, when all
/// replicas have ended, the launcher compares them and fails the run. With an optimizer that is not
/// ours the parameters count as they are when this object goes.
class DistributedDataParallel {
 public:
  /// Throws Error(kDiverged) naming the first parameter or buffer in which two replicas' models
  /// differ; Error(kUsage) for what cannot be exact: parameters that are not on the CPU, not
  /// floating point, or are registered with overlapping memory.
  DistributedDataParallel(const Group& group, torch::nn::Module& module,
                          DistributedDataParallelOptions options = {});

  /// Starts the next step. Inside the loop all .grad() are undefined. Throws Error(kUsage) inside
  /// another loop of the same model.
  MicrobatchRange microbatches(const Batch& batch);

  /// Backward from a loss that is a mean over `count` (samples, tokens, or the sum of their
  /// weights): the gradient of loss * count is added to the sum of the batch. A count of 0 is a
  /// microbatch that contributes nothing. REQUIRES: an open microbatch.
  void backward_mean(const torch::Tensor& loss, double count);

  /// Backward from a loss that is a sum already.
  void backward_sum(const torch::Tensor& loss_sum, double count);

  /// Waits for the whole batch, by whoever, and gives every parameter's .grad() the one exact mean.
  /// Throws Error(kData) when the batch's count is 0; Error(kUsage) without a finished loop, or
  /// when all replicas left their loops with microbatches uncomputed.
  Step average();

  /// Evaluates `function` over samples 0 .. sample_count-1 in microbatches, shared among the
  /// replicas, without gradients, in evaluation mode; adds in the order of the samples. The same to
  /// the last bit for any number of replicas. `microbatch` is a recipe value, as in training.
  /// Between average() and the optimizer's step() it sees the parameters before that update, and
  /// leaves every .grad() as it is.
  Evaluation evaluate(uint64_t sample_count, uint64_t microbatch,
                      const std::function<EvaluationPart(const std::vector<size_t>&)>& function);

  /// XXH3-128 of the parameters, in hexadecimal digits; of this replica's copy.
  std::string parameter_hash();
  /// The same over parameters, buffers and the optimizer's state, in order of registration.
  std::string state_hash(const torch::optim::Optimizer& optimizer);
  /// Name and hash of each parameter, in order of registration.
  std::vector<std::pair<std::string, std::string>> parameter_hashes() const;

  /// The largest absolute difference of any parameter between any two copies after the last update:
  /// 0 with averaging on, where a difference of one bit ends the run.
  double drift() const;

  /// How often gradients were exchanged, and bytes of gradient partials and means that crossed
  /// between replicas' memory in the last step. Depends on the model and the number of replicas and
  /// partials only, never on the samples in a microbatch.
  uint64_t exchange_count() const;

  /// What this model takes, in words: slots, bytes, buckets.
  std::string memory_plan() const;

  const std::shared_ptr<internal::ReplicaImpl>& impl() const { return impl_; }

 private:
  std::shared_ptr<internal::ReplicaImpl> impl_;
};

}  // namespace lockstep
