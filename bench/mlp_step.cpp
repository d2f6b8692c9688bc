// One training step of an MLP on random rows, the same work as peers/ddp_mlp.py:
//   mlp_step --plain ...                     a loop on LibTorch alone, in this process
//   lockstep run -n N -- mlp_step ...        lockstep, everything that is on by default switched on
// Prints the median and the least time of a step; the first tenth is not counted.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/step_timing.h"
#include "src/train/mlp.h"

namespace {

using lockstep::bench::Clock;
using lockstep::bench::milliseconds_since;
using lockstep::train::Mlp;

constexpr double kLearningRate = 1e-3;
// Random rows for so many steps: a model that knows its only batch by heart gets gradients so small
// that the CPU computes them slowly.
constexpr int64_t kBatches = 64;

struct Work {
  bool plain = false;
  int64_t batch = 64;       // rows of one step, over all replicas
  int64_t microbatch = 32;  // rows of one forward and backward pass
  int64_t steps = 400;
  lockstep::train::MlpSizes sizes{.inputs = 784, .outputs = 10};
};

void add_options(CLI::App& app, Work& work) {
  app.add_flag("--plain", work.plain, "a loop on LibTorch alone, with the same fused optimizer");
  const auto number = [&](const char* name, auto& value, int64_t least, const char* meaning) {
    app.add_option(name, value, meaning)
        ->check(CLI::Range(least, int64_t{1} << 20))
        ->capture_default_str();
  };
  number("--batch", work.batch, 1, "rows of one step");
  number("--microbatch", work.microbatch, 1, "rows of one forward and backward pass");
  number("--steps", work.steps, 20, "the first tenth is not counted");
  number("--layers", work.sizes.layers, 1, "linear layers");
  number("--width", work.sizes.width, 1, "of all but the last");
}

struct Rows {
  torch::Tensor inputs;   // (batch, inputs)
  torch::Tensor targets;  // (batch)
};

Rows random_rows(const Work& work) {
  torch::manual_seed(5);
  const int64_t count = kBatches * work.batch;
  return {torch::randn({count, work.sizes.inputs}),
          torch::randint(0, work.sizes.outputs, {count}, torch::kInt64)};
}

void run_plain(const Work& work) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  Mlp model(work.sizes);
  lockstep::bench::PlainAdamW optimizer(model->parameters(), kLearningRate);
  const Rows rows = random_rows(work);
  std::vector<double> times;
  for (int64_t step = 0; step < work.steps; ++step) {
    const auto start = Clock::now();
    for (int64_t done = 0; done < work.batch; done += work.microbatch) {
      const int64_t size = std::min(work.microbatch, work.batch - done);
      const int64_t first = step % kBatches * work.batch + done;
      const auto loss = model->loss_sum(model->forward(rows.inputs.narrow(0, first, size)),
                                        rows.targets.narrow(0, first, size));
      (loss / static_cast<double>(work.batch)).backward();
    }
    optimizer.step_and_clear_gradients();
    times.push_back(milliseconds_since(start));
  }
  lockstep::bench::print_times(std::move(times), work.steps / 10);
}

void run_lockstep(const Work& work) {
  auto group = lockstep::Group::from_environment();
  torch::manual_seed(1);
  Mlp model(work.sizes);
  lockstep::DistributedDataParallel ddp(group, *model);
  lockstep::AdamW optimizer(
      ddp, torch::optim::AdamWOptions(kLearningRate).weight_decay(lockstep::bench::kWeightDecay));
  const Rows rows = random_rows(work);
  const lockstep::Batches batches(static_cast<uint64_t>(kBatches * work.batch),
                                  {.global_batch = static_cast<uint64_t>(work.batch),
                                   .microbatch = static_cast<uint64_t>(work.microbatch),
                                   .epochs = 0,
                                   .steps = static_cast<uint64_t>(work.steps),
                                   .shuffle = false});
  std::vector<double> times;
  lockstep::bench::TimingSums sums;
  for (const auto& batch : batches) {
    const auto start = Clock::now();
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto first = static_cast<int64_t>(microbatch.indices().front());
      const auto size = static_cast<int64_t>(microbatch.size());
      const auto outputs = model->forward(rows.inputs.narrow(0, first, size));
      ddp.backward_sum(model->loss_sum(outputs, rows.targets.narrow(0, first, size)),
                       static_cast<double>(size));
    }
    const auto step = ddp.average();
    optimizer.step();
    times.push_back(milliseconds_since(start));
    sums.add(step);
  }
  if (group.rank() != 0) return;
  sums.print();
  std::printf("parameter hash %s\n", ddp.parameter_hash().c_str());
  lockstep::bench::print_times(std::move(times), work.steps / 10);
}

}  // namespace

int main(int argc, char** argv) {
  Work work;
  CLI::App app("One training step of an MLP on random rows, timed.", "mlp_step");
  add_options(app, work);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    work.plain ? run_plain(work) : run_lockstep(work);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlp_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
