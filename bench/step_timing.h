#pragma once

// What the timed training steps of this folder have in common: options, the two loops, the figures.

#include <cstdint>
#include <functional>
#include <memory>

#include <CLI/CLI.hpp>

#include <torch/torch.h>

namespace lockstep::bench {

struct StepOptions {
  bool plain = false;
  int64_t batch = 1;       // samples of one step, over all replicas
  int64_t microbatch = 1;  // samples of one forward and backward pass
  int64_t steps = 30;
};

/// A model with random samples to train it on.
struct TimedModel {
  std::shared_ptr<torch::nn::Module> module;
  int64_t sample_count = 0;  // taken in order, again and again; a multiple of the batch
  double units = 1;          // of one sample, that a mean divides by: rows, tokens
  /// Of the samples first, first + 1, ..., summed over their units.
  std::function<torch::Tensor(int64_t first, int64_t count)> loss_sum;
  double learning_rate = 1e-3;
};

using MakeModel = std::function<TimedModel()>;

/// Adds a whole number of at least `least`.
template <typename Number>
void add_number(CLI::App& app, const char* name, Number& value, int64_t least,
                const char* meaning) {
  app.add_option(name, value, meaning)
      ->check(CLI::Range(least, int64_t{1} << 20))
      ->capture_default_str();
}

/// --plain, --batch, --microbatch and --steps.
void add_step_options(CLI::App& app, StepOptions& options);

/// The program: reads the words, makes the model, trains it by lockstep or by a loop on LibTorch
/// alone, prints the median and the least time of a step, without the first `uncounted(steps)`.
/// `check` may refuse what was read. Returns the exit status.
int run_program(
    CLI::App& app, int argc, char** argv, const StepOptions& options, const MakeModel& make,
    const std::function<int64_t(int64_t)>& uncounted, const std::function<void()>& check = [] {});

}  // namespace lockstep::bench
