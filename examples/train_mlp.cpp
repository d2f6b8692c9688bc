// The loop of the README on data made on the spot: run it alone, or with
//   lockstep run -n 4 -- build/bin/train_mlp
// and compare the hash it ends with.

#include <iostream>

#include <lockstep/lockstep.h>

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(20, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 10));

  torch::Tensor forward(const torch::Tensor& input) { return output(torch::relu(hidden(input))); }
};

}  // namespace

int main() {
  namespace F = torch::nn::functional;
  auto group = lockstep::Group::from_environment();

  torch::manual_seed(1);
  const auto inputs = torch::randn({200, 20});
  const auto targets = torch::randint(0, 10, {200}, torch::kInt64);

  auto model = std::make_shared<Net>();
  lockstep::DistributedDataParallel ddp(group, *model);
  lockstep::AdamW optimizer(ddp, torch::optim::AdamWOptions(3e-3));
  lockstep::Batches batches(200, {.global_batch = 60, .microbatch = 7, .epochs = 5, .seed = 1});

  for (const auto& batch : batches) {
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const std::vector<int64_t> rows(microbatch.indices().begin(), microbatch.indices().end());
      const auto index = torch::tensor(rows);
      const auto input = inputs.index_select(0, index);
      const auto target = targets.index_select(0, index);
      const auto loss = F::cross_entropy(model->forward(input), target);
      ddp.backward_mean(loss, static_cast<double>(target.numel()));
    }
    const auto step = ddp.average();
    optimizer.step();
    if (group.rank() == 0 && step.number % 5 == 0) {
      std::cout << "step " << step.number << " loss " << step.loss << std::endl;
    }
  }
  if (group.rank() == 0) std::cout << "state " << ddp.state_hash(optimizer) << std::endl;
}
