// One training step of a GPT on random tokens, the same work as peers/ddp_gpt.py:
//   gpt_step --plain ...                     a loop on LibTorch alone, in this process
//   lockstep run -n N -- gpt_step ...        lockstep, everything that is on by default switched on
// Prints the median and the least time of a step; the first two are not counted: memory is taken
// and the audit is made in them.

#include <ATen/autocast_mode.h>

#include "bench/step_timing.h"
#include "src/train/gpt.h"

namespace {

using lockstep::bench::StepOptions;
using lockstep::bench::TimedModel;
using lockstep::train::Gpt;
using lockstep::train::GptSizes;

// tokens: (sequences, context + 1)
torch::Tensor loss_sum(Gpt& model, const torch::Tensor& tokens, bool bf16) {
  at::autocast::set_autocast_enabled(at::kCPU, bf16);
  const int64_t context = tokens.size(1) - 1;
  const auto loss = model->loss_sum(tokens.narrow(1, 0, context).contiguous(),
                                    tokens.narrow(1, 1, context).contiguous());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return loss;
}

TimedModel make_model(const StepOptions& options, const GptSizes& sizes, bool bf16) {
  Gpt model(sizes);
  torch::manual_seed(5);
  const int64_t count = options.steps * options.batch;
  const auto tokens =
      torch::randint(0, sizes.vocabulary, {count, int64_t{sizes.context} + 1}, torch::kInt64);
  TimedModel timed;
  timed.module = model.ptr();
  timed.sample_count = count;
  timed.units = sizes.context;
  timed.learning_rate = 3e-4;
  timed.loss_sum = [=](int64_t first, int64_t size) mutable {
    return loss_sum(model, tokens.narrow(0, first, size), bf16);
  };
  return timed;
}

}  // namespace

int main(int argc, char** argv) {
  StepOptions options{.batch = 2};
  GptSizes sizes;
  bool bf16 = false;
  CLI::App app("One training step of a GPT on random tokens, timed.", "gpt_step");
  lockstep::bench::add_step_options(app, options);
  app.add_flag("--bf16", bf16, "forward passes under bf16 autocast");
  lockstep::bench::add_number(app, "--layers", sizes.layers, 1, "");
  lockstep::bench::add_number(app, "--heads", sizes.heads, 1, "must divide the width");
  lockstep::bench::add_number(app, "--width", sizes.width, 1, "");
  lockstep::bench::add_number(app, "--context", sizes.context, 1, "tokens of one sequence");
  return lockstep::bench::run_program(
      app, argc, argv, options, [&] { return make_model(options, sizes, bf16); },
      [](int64_t) { return 2; },
      [&] {
        if (sizes.width % sizes.heads == 0) return;
        throw CLI::ValidationError("--heads", "must divide the width");
      });
}
