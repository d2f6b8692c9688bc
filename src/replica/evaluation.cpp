#include <algorithm>

#include "lockstep/error.h"
#include "src/base/random.h"
#include "src/replica/replica_impl.h"

namespace lockstep::internal {
namespace {

constexpr uint64_t kEvaluationKey = 0x6576616c;  // of random numbers, see replica_impl.cpp
constexpr auto kRelaxed = std::memory_order_relaxed;

// Puts a module into evaluation mode and, at the end, each of its parts back into its own.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modes_{{&module, module.is_training()}} {
    for (const auto& part : module.modules(/*include_self=*/false)) {
      modes_.emplace_back(part.get(), part->is_training());
    }
    module.eval();
  }
  ~EvaluationMode() {
    // Parents come first: each call reaches the parts below, which are then set one by one.
    for (const auto& [part, is_training] : modes_) {
      if (part->is_training() != is_training) part->train(is_training);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace

Evaluation ReplicaImpl::evaluate(
    uint64_t sample_count, uint64_t microbatch,
    const std::function<EvaluationPart(const std::vector<size_t>&)>& function) {
  check_not_in_loop("evaluate()");
  if (round_open_) {
    throw Error(ErrorCode::kUsage, "evaluate() was called between microbatches() and average()");
  }
  if (sample_count == 0 || microbatch == 0) {
    throw Error(ErrorCode::kUsage,
                "evaluate() needs at least 1 sample and a microbatch of at least 1");
  }
  clear_autocast_cache();
  // A mean may wait for its update here, or a stock optimizer has used it and did not say so.
  // Either way it stays: no round of values writes the mean, and the next gradients wait until this
  // replica says that it has applied the last of these rounds, which it does in its next call.
  if (!has_pending_mean_) drop_old_means();
  const EvaluationMode evaluation_mode(module_);
  const torch::NoGradGuard no_grad;
  Evaluation total;
  const uint64_t all = (sample_count + microbatch - 1) / microbatch;
  for (uint64_t first = 0; first < all; first += ledger::kMostMicrobatches) {
    const uint64_t count = std::min<uint64_t>(all - first, ledger::kMostMicrobatches);
    if (has_pending_mean_ || first > 0) ledger_.set_applied(parameter_hash());
    evaluate_round(first, static_cast<uint32_t>(count), sample_count, microbatch, function);
    const ledger::CommitRecord& record = ledger_.record_of(ledger_.round());
    total.loss += record.loss;
    total.count += record.count;
    for (size_t i = 0; i < kMetricCount; ++i) total.metrics[i] += record.metrics[i];
  }
  if (!has_pending_mean_) ledger_.set_applied(parameter_hash());
  seed_between();
  total.loss /= total.count;
  return total;
}

void ReplicaImpl::evaluate_round(
    uint64_t first, uint32_t count, uint64_t sample_count, uint64_t microbatch,
    const std::function<EvaluationPart(const std::vector<size_t>&)>& function) {
  ledger_.enter(count, ledger::RoundKind::kValues);
  ledger::Turn turn = ledger::Turn::kWait;
  for (;;) {
    group_->wait(
        "the evaluation by other replicas",
        [&] { return (turn = ledger_.next(work_)) != ledger::Turn::kWait; },
        [this] { return members_behind(); });
    if (turn != ledger::Turn::kYours) break;
    const uint64_t begin = (first + work_.microbatch) * microbatch;
    std::vector<size_t> indices(std::min(microbatch, sample_count - begin));
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = begin + i;
    seed_default_generator(base::permute_32(base::mix_key(seed_, kEvaluationKey, model_index_),
                                            static_cast<uint32_t>(begin / microbatch)));
    EvaluationPart part;
    group_->open_loop = this;
    try {
      part = function(indices);
    } catch (...) {
      group_->open_loop = nullptr;
      ledger_.give_back(work_);
      throw;
    }
    group_->open_loop = nullptr;
    ledger::MicrobatchRecord& record = ledger_.record(work_.microbatch);
    record.loss.store(part.loss, kRelaxed);
    record.count.store(part.count, kRelaxed);
    for (size_t i = 0; i < kMetricCount; ++i) record.metrics[i].store(part.metrics[i], kRelaxed);
    ledger_.publish(work_);
  }
  if (turn == ledger::Turn::kFailed) throw_failure();
  group_->wait(
      "the evaluation's result",
      [&] { return (turn = ledger_.claim_commit(options_.averaging)) != ledger::Turn::kWait; },
      [this] { return members_behind(); });
  if (turn == ledger::Turn::kFailed) throw_failure();
  if (turn != ledger::Turn::kYours) return;
  uint32_t unused = 0;
  sum_records(ledger_.record_of(ledger_.round()), unused);
  ledger_.commit();
}

}  // namespace lockstep::internal
