// One training step of a GPT on random tokens, the same work as peers/ddp_gpt.py:
//   gpt_step --plain ...                     a loop on LibTorch alone, in this process
//   lockstep run -n N -- gpt_step ...        lockstep, everything that is on by default switched on
// Prints the median and the least time of a step; the first two are not counted: memory is taken
// and the audit is made in them.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <ATen/autocast_mode.h>

#include <lockstep/lockstep.h>

#include "bench/step_timing.h"
#include "src/train/gpt.h"

namespace {

using lockstep::bench::Clock;
using lockstep::bench::kUncountedSteps;
using lockstep::bench::milliseconds_since;
using lockstep::train::Gpt;

constexpr double kLearningRate = 3e-4;

struct Work {
  bool plain = false;
  bool bf16 = false;
  int64_t batch = 2;       // sequences of one step, over all replicas
  int64_t microbatch = 1;  // sequences of one forward and backward pass
  int64_t steps = 30;
  lockstep::train::GptSizes sizes;
};

void add_options(CLI::App& app, Work& work) {
  app.add_flag("--plain", work.plain, "a loop on LibTorch alone, with the same fused optimizer");
  app.add_flag("--bf16", work.bf16, "forward passes under bf16 autocast");
  const auto number = [&](const char* name, auto& value, int64_t least, const char* meaning) {
    app.add_option(name, value, meaning)
        ->check(CLI::Range(least, int64_t{1} << 20))
        ->capture_default_str();
  };
  number("--batch", work.batch, 1, "sequences of one step");
  number("--microbatch", work.microbatch, 1, "sequences of one forward and backward pass");
  number("--steps", work.steps, kUncountedSteps + 1, "the first two are not counted");
  number("--layers", work.sizes.layers, 1, "");
  number("--heads", work.sizes.heads, 1, "must divide the width");
  number("--width", work.sizes.width, 1, "");
  number("--context", work.sizes.context, 1, "tokens of one sequence");
}

torch::Tensor random_tokens(const Work& work) {
  torch::manual_seed(5);
  return torch::randint(0, work.sizes.vocabulary,
                        {work.steps * work.batch, int64_t{work.sizes.context} + 1}, torch::kInt64);
}

// tokens: (sequences, context + 1)
torch::Tensor loss_sum(Gpt& model, const torch::Tensor& tokens, bool bf16) {
  at::autocast::set_autocast_enabled(at::kCPU, bf16);
  const int64_t context = tokens.size(1) - 1;
  const auto loss = model->loss_sum(tokens.narrow(1, 0, context).contiguous(),
                                    tokens.narrow(1, 1, context).contiguous());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return loss;
}

void run_plain(const Work& work) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  Gpt model(work.sizes);
  lockstep::bench::PlainAdamW optimizer(model->parameters(), kLearningRate);
  const auto tokens = random_tokens(work);
  const auto count = static_cast<double>(work.batch * work.sizes.context);
  std::vector<double> times;
  for (int64_t step = 0; step < work.steps; ++step) {
    const auto start = Clock::now();
    for (int64_t done = 0; done < work.batch; done += work.microbatch) {
      const int64_t size = std::min(work.microbatch, work.batch - done);
      const auto rows = tokens.narrow(0, step * work.batch + done, size);
      (loss_sum(model, rows, work.bf16) / count).backward();
    }
    optimizer.step_and_clear_gradients();
    // The weights have changed: autocast's copies of them in bf16 are out of date.
    at::autocast::clear_cache();
    times.push_back(milliseconds_since(start));
  }
  lockstep::bench::print_times(std::move(times));
}

void run_lockstep(const Work& work) {
  auto group = lockstep::Group::from_environment();
  torch::manual_seed(1);
  Gpt model(work.sizes);
  lockstep::DistributedDataParallel ddp(group, *model);
  lockstep::AdamW optimizer(
      ddp, torch::optim::AdamWOptions(kLearningRate).weight_decay(lockstep::bench::kWeightDecay));
  const auto tokens = random_tokens(work);
  const lockstep::Batches batches(static_cast<uint64_t>(work.steps * work.batch),
                                  {.global_batch = static_cast<uint64_t>(work.batch),
                                   .microbatch = static_cast<uint64_t>(work.microbatch),
                                   .shuffle = false});
  std::vector<double> times;
  lockstep::bench::TimingSums sums;
  for (const auto& batch : batches) {
    const auto start = Clock::now();
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto first = static_cast<int64_t>(microbatch.indices().front());
      const auto rows = tokens.narrow(0, first, static_cast<int64_t>(microbatch.size()));
      ddp.backward_sum(loss_sum(model, rows, work.bf16),
                       static_cast<double>(microbatch.size() * work.sizes.context));
    }
    const auto step = ddp.average();
    optimizer.step();
    times.push_back(milliseconds_since(start));
    sums.add(step);
  }
  if (group.rank() != 0) return;
  sums.print();
  std::printf("parameter hash %s\n", ddp.parameter_hash().c_str());
  lockstep::bench::print_times(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  Work work;
  CLI::App app("One training step of a GPT on random tokens, timed.", "gpt_step");
  add_options(app, work);
  try {
    app.parse(argc, argv);
    if (work.sizes.width % work.sizes.heads != 0) {
      throw CLI::ValidationError("--heads", "must divide the width");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    work.plain ? run_plain(work) : run_lockstep(work);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
