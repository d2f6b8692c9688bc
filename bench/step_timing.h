#pragma once

// What the timed training steps of this folder have in common.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include <ATen/ops/_fused_adamw.h>

#include <lockstep/lockstep.h>

namespace lockstep::bench {

using Clock = std::chrono::steady_clock;

constexpr int64_t kUncountedSteps = 2;  // memory is taken and the audit is made in them
constexpr double kWeightDecay = 0.01;

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

inline void print_times(std::vector<double> milliseconds, int64_t uncounted = kUncountedSteps) {
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

/// Where the time of the steps went, on this replica.
class TimingSums {
 public:
  void add(const Step& step) {
    if (step.number <= kUncountedSteps) return;
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

}  // namespace lockstep::bench
