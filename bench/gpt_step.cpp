// One training step of a GPT on random tokens, the same work as PyTorch DDP's peer program:
//   gpt_step [--plain] [--bf16] [--batch 2] [--microbatch 1] [--layers 6] [--width 384] [--steps 30]
// --plain: a loop on LibTorch alone, in this process, with the same fused optimizer.
// Prints the median and the least time of a step, in milliseconds, without the first two.

#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "src/train/gpt.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Work {
  bool plain = false;
  bool bf16 = false;
  int64_t batch = 2;
  int64_t microbatch = 1;
  int64_t steps = 30;
  lockstep::train::GptSizes sizes;
};

Work parse(int argc, char** argv) {
  Work work;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return std::atoll(i + 1 < argc ? argv[++i] : "0"); };
    if (word == "--plain") work.plain = true;
    else if (word == "--bf16") work.bf16 = true;
    else if (word == "--batch") work.batch = value();
    else if (word == "--microbatch") work.microbatch = value();
    else if (word == "--steps") work.steps = value();
    else if (word == "--layers") work.sizes.layers = static_cast<uint32_t>(value());
    else if (word == "--width") work.sizes.width = static_cast<uint32_t>(value());
  }
  return work;
}

torch::Tensor loss_of(lockstep::train::Gpt& model, const torch::Tensor& tokens, bool bf16) {
  at::autocast::set_autocast_enabled(at::kCPU, bf16);
  const int64_t context = tokens.size(1) - 1;
  const auto loss = model->loss_sum(tokens.narrow(1, 0, context).contiguous(),
                                    tokens.narrow(1, 1, context).contiguous());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return loss;
}

torch::Tensor random_tokens(const Work& work) {
  torch::manual_seed(5);
  return torch::randint(0, work.sizes.vocabulary,
                        {work.steps * work.batch, int64_t{work.sizes.context} + 1}, torch::kInt64);
}

void print(const char* name, std::vector<double> milliseconds) {
  milliseconds.erase(milliseconds.begin(), milliseconds.begin() + 2);
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("%s median %.3f min %.3f\n", name, milliseconds[milliseconds.size() / 2],
              milliseconds.front());
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void run_plain(const Work& work) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  lockstep::train::Gpt model(work.sizes);
  std::vector<torch::Tensor> parameters = model->parameters();
  std::vector<torch::Tensor> first, second, counts;
  for (const auto& parameter : parameters) {
    first.push_back(torch::zeros_like(parameter));
    second.push_back(torch::zeros_like(parameter));
    counts.push_back(torch::zeros({}));
  }
  const auto tokens = random_tokens(work);
  std::vector<double> times;
  for (int64_t step = 0; step < work.steps; ++step) {
    const auto start = Clock::now();
    const double count = static_cast<double>(work.batch * work.sizes.context);
    for (int64_t m = 0; m < work.batch; m += work.microbatch) {
      const auto rows = tokens.narrow(0, step * work.batch + m, work.microbatch);
      (loss_of(model, rows, work.bf16) / count).backward();
    }
    {
      const torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> gradients;
      for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
      for (auto& taken : counts) taken.add_(1);
      at::_fused_adamw_(parameters, gradients, first, second, {}, counts, 3e-4, 0.9, 0.999, 0.01,
                        1e-8, false, false);
    }
    for (const auto& parameter : parameters) parameter.mutable_grad() = torch::Tensor();
    times.push_back(milliseconds_since(start));
  }
  print("plain", std::move(times));
}

void run_lockstep(const Work& work) {
  auto group = lockstep::Group::from_environment();
  torch::manual_seed(1);
  lockstep::train::Gpt model(work.sizes);
  lockstep::DistributedDataParallel ddp(group, *model);
  lockstep::AdamW optimizer(ddp, torch::optim::AdamWOptions(3e-4).weight_decay(0.01));
  const auto tokens = random_tokens(work);
  lockstep::Batches batches(static_cast<uint64_t>(work.steps * work.batch),
                            {.global_batch = static_cast<uint64_t>(work.batch),
                             .microbatch = static_cast<uint64_t>(work.microbatch),
                             .shuffle = false});
  std::vector<double> times;
  lockstep::StepTimings total;
  for (const auto& batch : batches) {
    const auto start = Clock::now();
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto first = static_cast<int64_t>(microbatch.indices().front());
      const auto rows = tokens.narrow(0, first, static_cast<int64_t>(microbatch.size()));
      const auto loss = loss_of(model, rows, work.bf16);
      ddp.backward_sum(loss, static_cast<double>(microbatch.size() * work.sizes.context));
    }
    const auto step = ddp.average();
    optimizer.step();
    times.push_back(milliseconds_since(start));
    if (step.number <= 2) continue;
    total.compute += step.timings.compute;
    total.wait += step.timings.wait;
    total.reduce += step.timings.reduce;
    total.total += step.timings.total;
  }
  if (group.rank() != 0) return;
  print("lockstep", times);
  const double n = static_cast<double>(times.size() - 2) / 1e3;
  std::printf("rank 0, ms a step: compute %.3f wait %.3f reduce %.3f before update %.3f; hash %s\n",
              total.compute / n, total.wait / n, total.reduce / n, total.total / n,
              ddp.parameter_hash().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const Work work = parse(argc, argv);
  work.plain ? run_plain(work) : run_lockstep(work);
}
