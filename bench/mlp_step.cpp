// One training step of an MLP on random rows, the same work as peers/ddp_mlp.py:
//   mlp_step --plain ...                     a loop on LibTorch alone, in this process
//   lockstep run -n N -- mlp_step ...        lockstep, everything that is on by default switched on
// Prints the median and the least time of a step; the first tenth, and at least two, is not
// counted.

#include <algorithm>

#include "bench/step_timing.h"
#include "src/train/mlp.h"

namespace {

using lockstep::bench::StepOptions;
using lockstep::bench::TimedModel;
using lockstep::train::Mlp;
using lockstep::train::MlpImpl;
using lockstep::train::MlpSizes;

// Random rows for so many steps: a model that knows its only batch by heart gets gradients so small
// that the CPU computes them slowly.
constexpr int64_t kBatches = 64;

TimedModel make_model(const StepOptions& options, const MlpSizes& sizes) {
  Mlp model(sizes);
  torch::manual_seed(5);
  const int64_t count = kBatches * options.batch;
  const auto inputs = torch::randn({count, sizes.inputs});
  const auto targets = torch::randint(0, sizes.outputs, {count}, torch::kInt64);
  TimedModel timed;
  timed.module = model.ptr();
  timed.sample_count = count;
  timed.learning_rate = 1e-3;
  timed.loss_sum = [=](int64_t first, int64_t size) mutable {
    return MlpImpl::loss_sum(model->forward(inputs.narrow(0, first, size)),
                             targets.narrow(0, first, size));
  };
  return timed;
}

}  // namespace

int main(int argc, char** argv) {
  StepOptions options{.batch = 64, .microbatch = 32, .steps = 400};
  MlpSizes sizes{.inputs = 784, .outputs = 10};
  CLI::App app("One training step of an MLP on random rows, timed.", "mlp_step");
  lockstep::bench::add_step_options(app, options);
  lockstep::bench::add_number(app, "--layers", sizes.layers, 1, "linear layers");
  lockstep::bench::add_number(app, "--width", sizes.width, 1, "of all but the last");
  return lockstep::bench::run_program(
      app, argc, argv, options, [&] { return make_model(options, sizes); },
      [](int64_t steps) { return std::max<int64_t>(2, steps / 10); });
}
