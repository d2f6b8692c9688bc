#include "lockstep/optimizers.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "src/replica/fused_update.h"

namespace lockstep {

using internal::Entry;
using internal::FusedUpdate;
using internal::Segment;

namespace {

std::vector<torch::optim::OptimizerParamGroup> one_group(DistributedDataParallel& ddp) {
  std::vector<torch::Tensor> parameters;
  for (const Entry& entry : ddp.impl()->model().parameters()) parameters.push_back(entry.tensor);
  return {torch::optim::OptimizerParamGroup(std::move(parameters))};
}

// LibTorch 2.13's fused SGD reads a bfloat16 or float16 momentum as if it were float32, beyond the
// tensor's end: such a chunk is computed in float32 and rounded once.
void fused_sgd(torch::Tensor parameters, torch::Tensor gradients,
               std::vector<torch::Tensor> momenta, const torch::optim::SGDOptions& options,
               bool is_first) {
  const auto update = [&](torch::Tensor& parameter, torch::Tensor& gradient,
                          std::vector<torch::Tensor>& momentum) {
    at::_fused_sgd_({parameter}, {gradient}, momentum, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    is_first);
  };
  const auto dtype = parameters.scalar_type();
  if (momenta.empty() || (dtype != torch::kBFloat16 && dtype != torch::kFloat16)) {
    return update(parameters, gradients, momenta);
  }
  torch::Tensor parameter = parameters.to(torch::kFloat32);
  torch::Tensor gradient = gradients.to(torch::kFloat32);
  std::vector<torch::Tensor> momentum = {momenta[0].to(torch::kFloat32)};
  update(parameter, gradient, momentum);
  parameters.copy_(parameter);
  momenta[0].copy_(momentum[0]);
}

}  // namespace

// -- AdamW ----------------------------------------------------------------------------------------

AdamW::AdamW(DistributedDataParallel& ddp, torch::optim::AdamWOptions options)
    : AdamW(ddp, one_group(ddp), options) {}

AdamW::AdamW(DistributedDataParallel& ddp, std::vector<torch::optim::OptimizerParamGroup> groups,
             torch::optim::AdamWOptions defaults)
    // LibTorch's own optimizer checks the options.
    : Optimizer(torch::optim::AdamW(groups, defaults).param_groups(),
                std::make_unique<torch::optim::AdamWOptions>(defaults)) {
  bool amsgrad = false;
  for (const auto& group : param_groups()) {
    amsgrad = amsgrad || static_cast<const torch::optim::AdamWOptions&>(group.options()).amsgrad();
  }
  update_ = std::make_unique<FusedUpdate>(ddp.impl(), amsgrad ? 3 : 2);
  update_->set_groups(param_groups());
}

AdamW::~AdamW() = default;

void AdamW::clip_norm(double max_norm) { update_->clip_norm(max_norm); }

torch::Tensor AdamW::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const auto progress = [this](const Entry& entry) {
    auto& slot = state_[entry.tensor.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<torch::optim::AdamWParamState>();
    auto& state = static_cast<torch::optim::AdamWParamState&>(*slot);
    update_->adopt(state.exp_avg(), entry, 0);
    update_->adopt(state.exp_avg_sq(), entry, 1);
    if (update_->state_count() > 2) update_->adopt(state.max_exp_avg_sq(), entry, 2);
    state.step(state.step() + 1);
    return FusedUpdate::Progress{state.step(), false};
  };
  update_->run(progress, [this](const Segment& segment, torch::Tensor parameters,
                                torch::Tensor gradients, const std::vector<torch::Tensor>& states) {
    const auto& options =
        static_cast<const torch::optim::AdamWOptions&>(param_groups()[segment.group].options());
    const auto [beta1, beta2] = options.betas();
    const torch::Tensor step =
        torch::scalar_tensor(static_cast<double>(segment.step), torch::kFloat32);
    std::vector<torch::Tensor> largest;
    if (options.amsgrad()) largest.push_back(states[2]);
    at::_fused_adamw_({parameters}, {gradients}, {states[0]}, {states[1]}, largest, {step},
                      options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                      options.amsgrad(), /*maximize=*/false);
  });
  return loss;
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(archive,
                                                                                     *this);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(archive,
                                                                                     *this);
}

// -- SGD ------------------------------------------------------------------------------------------

SGD::SGD(DistributedDataParallel& ddp, torch::optim::SGDOptions options)
    : SGD(ddp, one_group(ddp), options) {}

SGD::SGD(DistributedDataParallel& ddp, std::vector<torch::optim::OptimizerParamGroup> groups,
         torch::optim::SGDOptions defaults)
    : Optimizer(torch::optim::SGD(groups, defaults).param_groups(),
                std::make_unique<torch::optim::SGDOptions>(defaults)) {
  update_ = std::make_unique<FusedUpdate>(ddp.impl(), 1);
  update_->set_groups(param_groups());
}

SGD::~SGD() = default;

void SGD::clip_norm(double max_norm) { update_->clip_norm(max_norm); }

torch::Tensor SGD::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const auto progress = [this](const Entry& entry) {
    auto& slot = state_[entry.tensor.unsafeGetTensorImpl()];
    const bool is_first = !slot;
    if (!slot) slot = std::make_unique<torch::optim::SGDParamState>();
    update_->adopt(static_cast<torch::optim::SGDParamState&>(*slot).momentum_buffer(), entry, 0);
    return FusedUpdate::Progress{0, is_first};
  };
  update_->run(progress, [this](const Segment& segment, torch::Tensor parameters,
                                torch::Tensor gradients, const std::vector<torch::Tensor>& states) {
    const auto& options =
        static_cast<const torch::optim::SGDOptions&>(param_groups()[segment.group].options());
    std::vector<torch::Tensor> momenta;
    if (options.momentum() != 0) momenta.push_back(states[0]);
    fused_sgd(parameters, gradients, momenta, options, segment.is_first);
  });
  return loss;
}

void SGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<torch::optim::SGDParamState, torch::optim::SGDOptions>(archive, *this);
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<torch::optim::SGDParamState, torch::optim::SGDOptions>(archive, *this);
}

}  // namespace lockstep
