#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

// lockstep_probe SCENARIO... [options]: trains tiny models through the public headers and prints
// all that the promise covers, on every rank. Lines that may differ between ranks or runs start
// with "# ". The tests of this folder start it at several replica counts and compare the lines byte
// by byte.

namespace lockstep::probe {

/// What changes how a scenario is computed and must not change any bit of it.
struct Options {
  uint64_t shuffle_claims = 0;
  uint64_t bucket_bytes = 0;
  size_t shift_bytes = 0;  // where floating-point inputs start, mod 64
  uint32_t slow_rank = UINT32_MAX;
  uint32_t slow_ms = 0;  // that this rank sleeps in each of its microbatches
  bool audit = true;
  std::string variant;  // for the scenario's own use
};

/// What a scenario gets.
struct Context {
  Group group;
  Options options;
  std::string name;

  uint32_t rank() const { return group.rank(); }
  DistributedDataParallelOptions ddp_options() const;
  void slow_down() const;
  /// Returns when every rank has called it with the same name. The variant is a folder for it.
  void meet(const std::string& place) const;
};

using Scenario = void (*)(Context&);

/// Name -> scenario, in one map for each of the probe's files.
std::map<std::string, Scenario> exactness_scenarios();
std::map<std::string, Scenario> number_scenarios();
std::map<std::string, Scenario> refusal_scenarios();

/// One line on stdout, flushed: what a replica said before it died must be seen.
void print(const std::string& line);
/// As "%a": every bit, readable.
std::string bits(double value);
std::string bits(const torch::Tensor& tensor);  // of all elements, in order
/// FNV-1a over dtype, shape and bytes; "none" for an undefined tensor.
std::string hash(const torch::Tensor& tensor);
std::string gradient_hash(const torch::nn::Module& module);
std::string buffer_hash(const torch::nn::Module& module);

/// The rows that a microbatch names, as a new tensor, where the context says so at a shifted start.
torch::Tensor rows(const Context& context, const torch::Tensor& data,
                   const std::vector<size_t>& indices);
torch::Tensor shifted(const torch::Tensor& tensor, size_t shift_bytes);
/// Normal numbers whose rows are scaled by 1e4, -1e4, 1 in turn, so that sums over rows cancel.
torch::Tensor cancelling_rows(int64_t row_count, std::vector<int64_t> shape);

struct Plan {
  std::shared_ptr<torch::nn::Module> model;
  /// Forward and backward of one microbatch.
  std::function<void(DistributedDataParallel&, const Microbatch&)> compute;
  /// Empty: lockstep::AdamW.
  std::function<std::unique_ptr<torch::optim::Optimizer>(DistributedDataParallel&)> optimizer;
  std::function<void(uint64_t step)> before_step;
  std::function<void(DistributedDataParallel&, torch::optim::Optimizer&, const Step&)>
      after_average;
  std::function<void(DistributedDataParallel&)> after_update;
  uint64_t sample_count = 200;
  // 9 microbatches, the last one short; the last batch of an epoch has 3.
  BatchesOptions batches = {.global_batch = 60, .microbatch = 7, .epochs = 2, .seed = 1};
};

/// Trains and prints. Throws where a parameter ends as NaN or infinity: such a run shows nothing.
void train(Context& context, const Plan& plan);
void print_step(Context& context, const Step& step, const std::string& gradients,
                DistributedDataParallel& ddp, const torch::nn::Module& model);

/// One parameter "w" of these values.
struct Weights : torch::nn::Module {
  explicit Weights(const torch::Tensor& values) : w(register_parameter("w", values.clone())) {}
  torch::Tensor w;
};

/// Linear layers with ReLU between them and, where asked for, dropout after each ReLU.
struct Mlp : torch::nn::Module {
  explicit Mlp(const std::vector<int64_t>& widths, double dropout_rate = 0);
  torch::Tensor forward(torch::Tensor input);

  std::vector<torch::nn::Linear> layers;
  torch::nn::Dropout dropout{nullptr};
};

/// Rows of 20 numbers that cancel, with a class below 10 each.
struct ClassData {
  explicit ClassData(int64_t count);
  torch::Tensor inputs;   // (count, 20)
  torch::Tensor targets;  // (count)
};

}  // namespace lockstep::probe
