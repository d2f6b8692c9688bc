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
#include "src/train/gpt.h"
#include "src/train/token_data.h"

namespace lockstep::train {
namespace {

using Clock = std::chrono::steady_clock;

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

struct TokenBatch {
  torch::Tensor inputs;   // (sequences, context)
  torch::Tensor targets;  // (sequences, context): the next token of each
};

// Fresh tensors for each microbatch: they start at multiples of 64 bytes whoever computes it.
TokenBatch sequences(const TokenData& data, const std::vector<size_t>& indices) {
  const auto rows = static_cast<int64_t>(indices.size());
  const auto context = static_cast<int64_t>(data.context());
  TokenBatch batch{torch::empty({rows, context}, torch::kInt64),
                   torch::empty({rows, context}, torch::kInt64)};
  for (int64_t row = 0; row < rows; ++row) {
    data.copy_sequence(indices[static_cast<size_t>(row)],
                       batch.inputs.data_ptr<int64_t>() + row * context,
                       batch.targets.data_ptr<int64_t>() + row * context);
  }
  return batch;
}

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
  double validation_loss();
  void finish(exchange::StepReport report);
  void write_parameter_hashes(uint64_t step) const;
  void write_sample();
  bool is_lowest() const;

  static BatchesOptions batches_options(const TrainOptions& options);
  static Gpt make_model(const TrainOptions& options);
  static DistributedDataParallelOptions ddp_options(const TrainOptions& options);
  static TokenDataOptions data_options(const TrainOptions& options);

  const TrainOptions& options_;
  Group group_;
  TokenSplit data_;
  Batches batches_;
  Gpt model_;
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

Gpt Trainer::make_model(const TrainOptions& options) {
  torch::manual_seed(options.seed);
  return Gpt(options.gpt);
}

DistributedDataParallelOptions Trainer::ddp_options(const TrainOptions& options) {
  DistributedDataParallelOptions ddp;
  ddp.averaging = options.averaging;
  ddp.audit_interval = options.audit;
  ddp.bucket_bytes = options.bucket_bytes;
  ddp.shuffle_claims = options.shuffle_claims;
  return ddp;
}

TokenDataOptions Trainer::data_options(const TrainOptions& options) {
  TokenDataOptions data;
  data.paths = options.data;
  data.vocabulary = options.gpt.vocabulary;
  data.context = options.gpt.context;
  data.validation_path = options.validation_path;
  data.validation_fraction = options.validation_fraction;
  return data;
}

Trainer::Trainer(const TrainOptions& options)
    : options_(options),
      group_(Group::from_environment({.threads = options.threads})),
      data_(load_token_data(data_options(options))),
      batches_(data_.training.sequence_count(), batches_options(options)),
      model_(make_model(options)),
      ddp_(group_, *model_, ddp_options(options)),
      optimizer_(options, ddp_) {}

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
    if (takes(options_.evaluate_every) && data_.validation) {
      report.validation_loss = validation_loss();
      report.has_validation_loss = 1;
    }
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
  report.gradient_norm = step.gradient_norm;
  report.learning_rate = rate;
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
  const TokenBatch batch = sequences(data_.training, microbatch.indices());
  torch::Tensor loss;
  {
    const Autocast autocast(options_.precision);
    loss = model_->loss_sum(batch.inputs, batch.targets);
  }
  ddp_.backward_sum(loss, static_cast<double>(batch.targets.numel()));
}

double Trainer::validation_loss() {
  const TokenData& data = *data_.validation;
  const auto part = [&](const std::vector<size_t>& indices) {
    const TokenBatch batch = sequences(data, indices);
    const Autocast autocast(options_.precision);
    EvaluationPart result;
    result.loss = model_->loss_sum(batch.inputs, batch.targets).item<double>();
    result.count = static_cast<double>(batch.targets.numel());
    return result;
  };
  return ddp_.evaluate(data.sequence_count(), options_.evaluation_microbatch, part).loss;
}

void Trainer::finish(exchange::StepReport report) {
  if (data_.validation && report.has_validation_loss == 0) {
    report.validation_loss = validation_loss();
    report.has_validation_loss = 1;
  }
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

// Continues the first held-out (or first) sequence.
void Trainer::write_sample() {
  if (!is_lowest()) return;
  const TokenData& data = data_.validation ? *data_.validation : data_.training;
  std::vector<int64_t> inputs(data.context());
  std::vector<int64_t> targets(data.context());
  data.copy_sequence(0, inputs.data(), targets.data());
  inputs.resize(std::min<size_t>(inputs.size(), 64));
  const auto tokens = generate(model_, inputs, options_.sample, data.context(), options_.seed);
  std::string text;
  for (const auto& list : {inputs, tokens}) {
    for (int64_t token : list) {
      if (data.token_bytes() == 1) {
        text += static_cast<char>(token);
      } else {
        text += std::to_string(token) + " ";
      }
    }
  }
  base::write_file_atomically(options_.out + "/sample.txt", text);
}

}  // namespace

void train_replica(const TrainOptions& options) {
  Trainer trainer(options);
  trainer.run();
}

}  // namespace lockstep::train
