#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/distributed_data_parallel.h"
#include "src/ledger/ledger.h"
#include "src/replica/arena.h"
#include "src/replica/drift_meter.h"
#include "src/replica/flat_model.h"
#include "src/replica/gradient_sink.h"
#include "src/replica/group_state.h"
#include "src/replica/reducer.h"
#include "src/replica/torch_internals.h"

namespace lockstep::internal {

/// What DistributedDataParallel does: one wrapped model on one replica, driving the ledger. Audits
/// are in audit.cpp, evaluate() in evaluation.cpp.
///
/// With averaging off each replica has an arena and a ledger of its own, over its fixed part of the
/// batch: the same code with one member, and only the drift is looked at together.
class ReplicaImpl {
 public:
  ReplicaImpl(const Group& group, torch::nn::Module& module,
              const DistributedDataParallelOptions& options);
  ~ReplicaImpl();

  // -- The loop over microbatches ---------------------------------------------------------------
  void begin_round(const Batch& batch);
  void advance();  // to the next microbatch, waiting if need be; at_end() when there is none
  void finish_current();
  void leave_loop() noexcept;
  bool at_end() const { return at_end_; }
  const Microbatch& current() const { return current_; }
  void record(size_t which, double value);
  void backward(const torch::Tensor& loss, double count, bool is_mean);

  // -- The step -----------------------------------------------------------------------------------
  Step average();
  Evaluation evaluate(uint64_t sample_count, uint64_t microbatch,
                      const std::function<EvaluationPart(const std::vector<size_t>&)>& function);

  /// This replica's copy holds the last committed mean. Our optimizers pass the hash that they took
  /// in cache; for others it is taken at the next call into the library.
  void begin_update();
  void mark_applied(const base::Hash128& parameter_hash);
  void settle();

  /// Whether `gradient` is still this replica's view of the mean.
  bool is_own_mean(const Entry& entry, const torch::Tensor& gradient) const;
  /// [size] elements of this replica's view of the mean, by place in a flat tensor of float32 or
  /// float64.
  torch::Tensor own_mean_stretch(size_t flat, int64_t begin, int64_t size) const;

  const FlatModel& model() const { return model_; }
  GroupState& group() { return *group_; }
  bool averaging() const { return options_.averaging; }
  double last_norm() const { return last_norm_; }
  bool has_pending_mean() const { return has_pending_mean_; }
  base::Hash128 parameter_hash();
  base::Hash128 state_hash(const torch::optim::Optimizer& optimizer) const;
  double drift() const { return last_drift_; }
  uint64_t exchange_count() const { return exchange_count_; }
  std::string memory_plan() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void throw_failure();
  void check_not_in_loop(const char* call) const;
  std::vector<uint32_t> members_behind() const;
  void broadcast_values();
  std::vector<torch::Tensor> grad_views() const;
  void reserve_slots(uint32_t microbatch_count);
  void open_microbatch();
  void seed_microbatch(uint32_t microbatch);
  void seed_between();
  void plan_audit();
  bool next_audit();
  void finish_audit();
  void compare_audit_hashes();
  void post_context();
  void compare_contexts();
  void wait_for_batch();
  void reduce_buckets();
  Step commit();
  void write_record();
  void give_mean(uint32_t round);
  void set_buffers(uint32_t round);
  bool step_has(uint32_t round, uint32_t bit) const;
  void evaluate_round(uint64_t first, uint32_t count, uint64_t sample_count, uint64_t microbatch,
                      const std::function<EvaluationPart(const std::vector<size_t>&)>& function);
  void drop_old_means();
  void note_copy(const base::Hash128& parameter_hash);
  void sum_records(ledger::CommitRecord& record, uint32_t& backward_count);

  std::shared_ptr<GroupState> group_;
  torch::nn::Module& module_;
  DistributedDataParallelOptions options_;
  uint32_t model_index_;
  FlatModel model_;
  std::vector<Bucket> buckets_;
  Arena shared_arena_;
  std::optional<Arena> own_arena_;  // where averaging is off
  Arena& arena_;                    // the one that rounds run in
  ledger::Ledger ledger_;
  GradientSink sink_;
  Reducer reducer_;
  DriftMeter drift_meter_;
  std::vector<torch::Tensor>
      grad_views_;  // [parameter] of the private mean; undefined where converted

  // The open round.
  std::optional<Batch> batch_;
  uint32_t first_microbatch_ = 0;  // of this replica's part, where averaging is off
  bool in_loop_ = false;
  bool round_open_ = false;  // a loop was begun and average() not called yet
  bool at_end_ = true;
  bool is_open_ = false;  // a microbatch is being computed
  ledger::Work work_;
  Microbatch current_;
  ContextWord context_{};
  uint32_t backward_calls_ = 0;
  double loss_ = 0, count_ = 0;
  std::array<double, kMetricCount> metrics_{};
  StepTimings timings_;
  Clock::time_point round_start_, mark_;

  // The audit of this round (rule 13).
  bool is_audited_ = false;
  std::vector<std::pair<uint32_t, bool>> audit_queue_;  // microbatch, post to the others
  std::optional<uint32_t> audited_;                     // first microbatch of this replica
  std::vector<uint64_t> audited_hashes_;
  bool audit_is_planned_ = false;

  bool has_pending_mean_ = false;  // committed, not yet applied here
  uint32_t seed_step_stride_ = 1;
  uint64_t seed_ = 0;
  uint64_t step_number_ = 0;  // counted from 1; 0 before the first
  double last_norm_ = 0;
  double last_drift_ = 0;
  uint64_t exchange_count_ = 0;
  uint32_t reserved_for_ = 0;  // microbatches that slots are reserved for
  std::optional<base::Hash128> applied_hash_;
};

}  // namespace lockstep::internal
