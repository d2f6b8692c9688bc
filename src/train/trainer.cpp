#include "src/train/trainer.h"

#include <chrono>
#include <cmath>
#include <memory>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "lockstep/lockstep.h"
#include "src/base/file.h"
#include "src/exchange/control.h"
#include "src/replica/replica_impl.h"
#include "src/report/json_number.h"
#include "src/train/workload.h"

namespace lockstep::train {
namespace {

using Clock = std::chrono::steady_clock;
using Part = Workload::Part;

constexpr size_t kCorrect = 0;  // which of a microbatch's metrics

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// NaN and infinity as in our files, but without their quotes.
std::string number_text(double value) {
  std::string text = report::json_number(value);
  std::erase(text, '"');
  return text;
}

// bf16 autocast for a forward pass; as it was before, afterwards.
class Autocast {
 public:
  explicit Autocast(Precision precision) : was_on_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, precision == Precision::kBf16);
  }
  ~Autocast() { at::autocast::set_autocast_enabled(at::kCPU, was_on_); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool was_on_;
};

/// The optimizer that the options ask for.
struct OptimizerOf {
  OptimizerOf(const TrainOptions& options, DistributedDataParallel& ddp) {
    if (options.optimizer == OptimizerKind::kAdamW) {
      auto adamw = std::make_unique<AdamW>(
          ddp,
          torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
      adamw->clip_norm(options.clip_norm);
      optimizer = std::move(adamw);
    } else {
      auto sgd = std::make_unique<SGD>(ddp, torch::optim::SGDOptions(options.learning_rate)
                                                .momentum(options.momentum)
                                                .weight_decay(options.weight_decay));
      sgd->clip_norm(options.clip_norm);
      optimizer = std::move(sgd);
    }
  }

  void set_learning_rate(double rate) const {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options);

  void run();

 private:
  exchange::StepReport train_step(const Batch& batch);
  void train_microbatch(const Microbatch& microbatch);
  void evaluate(exchange::StepReport& report);
  void finish(exchange::StepReport report);
  void write_parameter_hashes(uint64_t step) const;
  void write_sample();
  bool is_lowest() const;
  bool validates() const;

  static BatchesOptions batches_options(const TrainOptions& options);
  static DistributedDataParallelOptions ddp_options(const TrainOptions& options);

  TrainOptions options_;
  Group group_;
  std::unique_ptr<Workload> workload_;
  Batches batches_;
  DistributedDataParallel ddp_;
  OptimizerOf optimizer_;
};

BatchesOptions Trainer::batches_options(const TrainOptions& options) {
  return {.global_batch = options.global_batch,
          .microbatch = options.microbatch,
          .epochs = options.epochs,
          .steps = options.steps,
          .seed = options.seed};
}

DistributedDataParallelOptions Trainer::ddp_options(const TrainOptions& options) {
  DistributedDataParallelOptions ddp;
  ddp.averaging = options.averaging;
  ddp.audit_interval = options.audit;
  ddp.bucket_bytes = options.bucket_bytes;
  ddp.shuffle_claims = options.shuffle_claims;
  return ddp;
}

Trainer::Trainer(const TrainOptions& options)
    : options_(options),
      group_(Group::from_environment({.threads = options.threads})),
      workload_(make_workload(options_)),
      batches_(workload_->sample_count(Part::kTraining), batches_options(options_)),
      ddp_(group_, workload_->model(), ddp_options(options_)),
      optimizer_(options_, ddp_) {}

bool Trainer::validates() const { return workload_->sample_count(Part::kValidation) != 0; }

bool Trainer::is_lowest() const {
  return ddp_.impl()->group().living_ranks().front() == group_.rank();
}

void Trainer::run() {
  exchange::StepReport report{};
  for (const Batch& batch : batches_) {
    report = train_step(batch);
    const bool is_last_step =
        report.step == batches_.step_count() || report.step == options_.stop_after;
    const auto takes = [&](uint64_t every) { return every != 0 && report.step % every == 0; };
    if (takes(options_.evaluate_every) && validates()) evaluate(report);
    if (takes(options_.hash_every)) {
      report.state_hash = ddp_.impl()->state_hash(*optimizer_.optimizer);
      report.has_state_hash = 1;
      write_parameter_hashes(report.step);
    }
    group_.state()->report(report);
    if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm)) {
      throw Error(ErrorCode::kData,
                  "step " + std::to_string(report.step) + ": the loss is " +
                      number_text(report.loss) + " and the gradient norm " +
                      number_text(report.gradient_norm) +
                      ": training cannot go on from there. Try a lower --lr, --warmup, or "
                      "--clip-norm 1");
    }
    if (is_last_step) return finish(report);
  }
}

exchange::StepReport Trainer::train_step(const Batch& batch) {
  const auto start = Clock::now();
  const double rate = learning_rate_at(options_, batch.step(), batches_.step_count());
  optimizer_.set_learning_rate(rate);
  for (const auto& microbatch : ddp_.microbatches(batch)) train_microbatch(microbatch);
  const Step step = ddp_.average();
  const auto applying = Clock::now();
  optimizer_.optimizer->step();

  exchange::StepReport report{};
  report.step = step.number;
  report.epoch = batch.epoch();
  report.loss = step.loss;
  report.count = step.count;
  report.accuracy = step.metrics[kCorrect] / step.count;
  report.gradient_norm = step.gradient_norm;
  report.learning_rate = rate;
  report.has_accuracy = has_classes(options_);
  report.drift = ddp_.drift();
  report.samples = batch.size();
  report.parameter_hash = ddp_.impl()->parameter_hash();
  report.apply = seconds_since(applying);
  report.seconds = seconds_since(start);
  report.compute = step.timings.compute;
  report.wait = step.timings.wait;
  report.reduce = step.timings.reduce;
  report.microbatches = step.timings.microbatches;
  report.stolen = step.timings.stolen;
  report.bytes_reduced = step.timings.bytes_reduced;
  report.member_count = step.members;
  return report;
}

void Trainer::train_microbatch(const Microbatch& microbatch) {
  Workload::Loss loss;
  {
    const Autocast autocast(options_.precision);
    loss = workload_->loss(Part::kTraining, microbatch.indices());
  }
  if (loss.correct) microbatch.record(kCorrect, *loss.correct);
  ddp_.backward_sum(loss.sum, loss.count);
}

void Trainer::evaluate(exchange::StepReport& report) {
  const auto part = [&](const std::vector<size_t>& samples) {
    const Autocast autocast(options_.precision);
    const Workload::Loss loss = workload_->loss(Part::kValidation, samples);
    EvaluationPart result;
    result.loss = loss.sum.item<double>();
    result.count = loss.count;
    result.metrics[kCorrect] = loss.correct.value_or(0);
    return result;
  };
  const Evaluation result = ddp_.evaluate(workload_->sample_count(Part::kValidation),
                                          options_.evaluation_microbatch, part);
  report.validation_loss = result.loss;
  report.validation_accuracy = result.metrics[kCorrect] / result.count;
  report.has_validation_loss = 1;
}

void Trainer::finish(exchange::StepReport report) {
  if (validates() && report.has_validation_loss == 0) evaluate(report);
  report.state_hash = ddp_.impl()->state_hash(*optimizer_.optimizer);
  if (report.has_state_hash == 0) write_parameter_hashes(report.step);
  report.has_state_hash = 1;
  report.is_last = 1;
  if (options_.sample != 0) write_sample();
  group_.state()->report(report);
}

void Trainer::write_parameter_hashes(uint64_t step) const {
  if (!is_lowest()) return;
  std::string line = "{\"step\":" + std::to_string(step) + ",\"parameters\":{";
  bool is_first = true;
  for (const auto& [name, hash] : ddp_.parameter_hashes()) {
    line += (is_first ? "" : ",") + report::json_string(name) + ":\"" + hash + "\"";
    is_first = false;
  }
  base::AppendFile file(options_.out + "/parameter_hashes.jsonl", base::AppendFile::Start::kKeep);
  file.append_line(line + "}}");
}

void Trainer::write_sample() {
  if (!is_lowest()) return;
  base::write_file_atomically(options_.out + "/sample.txt", workload_->generate(options_.sample));
}

}  // namespace

void train_replica(const TrainOptions& options) {
  Trainer trainer(options);
  trainer.run();
}

}  // namespace lockstep::train
