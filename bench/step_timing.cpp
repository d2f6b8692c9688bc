#include "bench/step_timing.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <lockstep/lockstep.h>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kUncountedSums = 2;  // memory is taken and the audit is made in these steps
constexpr double kWeightDecay = 0.01;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void print_times(std::vector<double> milliseconds, int64_t uncounted) {
  TORCH_CHECK(static_cast<int64_t>(milliseconds.size()) > uncounted, "too few steps to count any");
  milliseconds.erase(milliseconds.begin(), milliseconds.begin() + uncounted);
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("step median %.3f ms min %.3f ms\n", milliseconds[milliseconds.size() / 2],
              milliseconds.front());
}

// What torch.optim.AdamW(fused=True) does, for a program in C++ without lockstep.
class PlainAdamW {
 public:
  PlainAdamW(std::vector<torch::Tensor> parameters, double learning_rate)
      : parameters_(std::move(parameters)), learning_rate_(learning_rate) {
    for (const auto& parameter : parameters_) {
      averages_.push_back(torch::zeros_like(parameter));
      squares_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}));
    }
  }

  void step_and_clear_gradients() {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
    for (auto& step : steps_) step.add_(1);
    at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, steps_, learning_rate_, 0.9,
                      0.999, kWeightDecay, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    for (const auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
  }

 private:
  std::vector<torch::Tensor> parameters_;
  double learning_rate_;
  std::vector<torch::Tensor> averages_;  // [parameter], of the gradient
  std::vector<torch::Tensor> squares_;   // [parameter], of the gradient's square
  std::vector<torch::Tensor> steps_;     // [parameter], scalars
};

// Where the time of the steps went, on this replica.
class TimingSums {
 public:
  void add(const Step& step) {
    if (step.number <= kUncountedSums) return;
    ++count_;
    sum_.compute += step.timings.compute;
    sum_.wait += step.timings.wait;
    sum_.reduce += step.timings.reduce;
    sum_.total += step.timings.total;
  }
  void print() const {
    const double per_step = 1e3 / static_cast<double>(count_);
    std::printf("rank 0, mean ms: compute %.3f wait %.3f reduce %.3f, before the update %.3f\n",
                sum_.compute * per_step, sum_.wait * per_step, sum_.reduce * per_step,
                sum_.total * per_step);
  }

 private:
  StepTimings sum_;
  int64_t count_ = 0;
};

void run_plain(const StepOptions& options, const MakeModel& make, int64_t uncounted) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const TimedModel model = make();
  PlainAdamW optimizer(model.module->parameters(), model.learning_rate);
  const double count = static_cast<double>(options.batch) * model.units;
  std::vector<double> times;
  for (int64_t step = 0; step < options.steps; ++step) {
    const auto start = Clock::now();
    const int64_t first = step * options.batch % model.sample_count;
    for (int64_t done = 0; done < options.batch; done += options.microbatch) {
      const int64_t size = std::min(options.microbatch, options.batch - done);
      (model.loss_sum(first + done, size) / count).backward();
    }
    optimizer.step_and_clear_gradients();
    // The weights have changed: autocast's copies of them in bf16 are out of date.
    at::autocast::clear_cache();
    times.push_back(milliseconds_since(start));
  }
  print_times(std::move(times), uncounted);
}

void run_lockstep(const StepOptions& options, const MakeModel& make, int64_t uncounted) {
  auto group = Group::from_environment();
  torch::manual_seed(1);
  const TimedModel model = make();
  DistributedDataParallel ddp(group, *model.module);
  AdamW optimizer(ddp, torch::optim::AdamWOptions(model.learning_rate).weight_decay(kWeightDecay));
  const Batches batches(static_cast<uint64_t>(model.sample_count),
                        {.global_batch = static_cast<uint64_t>(options.batch),
                         .microbatch = static_cast<uint64_t>(options.microbatch),
                         .epochs = 0,
                         .steps = static_cast<uint64_t>(options.steps),
                         .shuffle = false});
  std::vector<double> times;
  TimingSums sums;
  for (const auto& batch : batches) {
    const auto start = Clock::now();
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto size = static_cast<int64_t>(microbatch.size());
      ddp.backward_sum(model.loss_sum(static_cast<int64_t>(microbatch.indices().front()), size),
                       static_cast<double>(size) * model.units);
    }
    const auto step = ddp.average();
    optimizer.step();
    times.push_back(milliseconds_since(start));
    sums.add(step);
  }
  if (group.rank() != 0) return;
  sums.print();
  std::printf("parameter hash %s\n", ddp.parameter_hash().c_str());
  print_times(std::move(times), uncounted);
}

}  // namespace

void add_step_options(CLI::App& app, StepOptions& options) {
  app.add_flag("--plain", options.plain, "a loop on LibTorch alone, with the same fused optimizer");
  add_number(app, "--batch", options.batch, 1, "samples of one step");
  add_number(app, "--microbatch", options.microbatch, 1,
             "samples of one forward and backward pass");
  add_number(app, "--steps", options.steps, 3, "the first are not counted");
}

int run_program(CLI::App& app, int argc, char** argv, const StepOptions& options,
                const MakeModel& make, const std::function<int64_t(int64_t)>& uncounted,
                const std::function<void()>& check) {
  try {
    app.parse(argc, argv);
    check();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    const auto run = options.plain ? run_plain : run_lockstep;
    run(options, make, uncounted(options.steps));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace lockstep::bench
