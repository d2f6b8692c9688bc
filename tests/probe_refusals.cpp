#include <chrono>
#include <stdexcept>
#include <thread>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tests/probe.h"

// Scenarios that must be refused, and those next to them that must not. Each refusal is printed as
// "refused CODE: message"; what follows it shows whether the program can go on.

namespace lockstep::probe {

namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

void refused(const std::function<void()>& call) {
  try {
    call();
    print("accepted");
  } catch (const Error& error) {
    print("# refused " + std::to_string(static_cast<int>(error.code())) + ": " + error.what());
  }
}

struct Training {
  explicit Training(Context& context, DistributedDataParallelOptions options)
      : data(48),
        ddp(context.group, model, options),
        optimizer(ddp, torch::optim::SGDOptions(1e-5)) {}
  explicit Training(Context& context) : Training(context, context.ddp_options()) {}

  Tensor loss(const Microbatch& microbatch) {
    const std::vector<int64_t> wanted(microbatch.indices().begin(), microbatch.indices().end());
    const auto index = torch::tensor(wanted);
    return F::cross_entropy(model.forward(data.inputs.index_select(0, index)),
                            data.targets.index_select(0, index));
  }

  void step(uint64_t number, const std::function<void(const Microbatch&)>& before_backward = {}) {
    for (const auto& microbatch : ddp.microbatches(batches.batch(number))) {
      if (before_backward) before_backward(microbatch);
      ddp.backward_mean(loss(microbatch), static_cast<double>(microbatch.size()));
    }
    ddp.average();
    optimizer.step();
  }

  ClassData data;
  Mlp model{{20, 16, 10}};
  DistributedDataParallel ddp;
  SGD optimizer;
  Batches batches{48, {.global_batch = 48, .microbatch = 6, .epochs = 4}};
};

// ------------------------------------------------------------------------------ calls at a wrong
// place

// Every wrong call is refused, and training goes on to the same bits as if it had not been made.
void wrong_calls(Context& context) {
  Training training(context);
  auto& ddp = training.ddp;
  Weights other_model(torch::zeros({3}));
  DistributedDataParallel other(context.group, other_model, context.ddp_options());
  const auto batch = training.batches.batch(0);
  refused([&] { ddp.average(); });
  refused([&] { training.optimizer.step(); });
  refused([&] { ddp.backward_mean(training.model.layers[0]->weight.sum(), 1); });
  refused([&] { training.model.layers[0]->weight.sum().backward(); });
  const auto evaluate = [&] {
    ddp.evaluate(4, 2, [](const std::vector<size_t>&) { return EvaluationPart{0, 1, {}}; });
  };
  bool is_first = true;
  for (const auto& microbatch : ddp.microbatches(batch)) {
    if (is_first) {
      refused([&] { ddp.microbatches(batch); });
      refused([&] { other.microbatches(batch); });
      refused(evaluate);
      refused([&] { ddp.average(); });
      refused([&] { training.optimizer.step(); });
      refused([&] { ddp.backward_mean(training.loss(microbatch), -1); });
      refused([&] { ddp.backward_mean(training.loss(microbatch), std::nan("")); });
      refused([&] { ddp.backward_mean(training.model.forward(torch::ones({2, 20})), 1); });
      refused([&] { microbatch.record(8, 1); });
    }
    is_first = false;
    ddp.backward_mean(training.loss(microbatch), static_cast<double>(microbatch.size()));
  }
  refused([&] { ddp.microbatches(batch); });
  refused(evaluate);
  ddp.average();
  refused([&] { ddp.average(); });
  training.optimizer.step();
  refused([&] { training.optimizer.step(); });
  refused([&] { ddp.evaluate(0, 1, [](const std::vector<size_t>&) { return EvaluationPart{}; }); });
  evaluate();
  training.step(1);
  print("state " + ddp.state_hash(training.optimizer));
}

void right_calls(Context& context) {
  Training training(context);
  Weights other_model(torch::zeros({3}));
  DistributedDataParallel other(context.group, other_model, context.ddp_options());
  training.step(0);
  training.step(1);
  print("state " + training.ddp.state_hash(training.optimizer));
}

// A graph from before the update is refused by autograd, for our updates are not seen by it.
void stale_graph(Context& context) {
  Training training(context);
  auto hidden = training.model.forward(torch::ones({3, 20}));
  training.step(0);
  try {
    torch::autograd::grad({hidden.sum()}, {training.model.layers[0]->weight});
    print("accepted");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    print("stale " + std::to_string(text.find("modified by an inplace operation") != text.npos));
  }
}

// ------------------------------------------------------------------------------ models

struct Odd : torch::nn::Module {
  explicit Odd(const std::string& variant, uint32_t rank) {
    const bool is_odd = rank == 1;
    const int64_t width = variant == "shape" && is_odd ? 33 : 32;
    if (variant == "order" && is_odd) {
      register_module("second", torch::nn::Linear(20, 32));
      register_module("first", torch::nn::Linear(20, 32));
    } else {
      register_module("first", torch::nn::Linear(20, 32));
      register_module("second", torch::nn::Linear(20, width));
    }
    if (variant == "buffer" && is_odd) register_buffer("extra", torch::zeros({4}));
    if (variant == "dtype" && is_odd) to(torch::kDouble);
  }
};

void other_structure(Context& context) {
  Odd model(context.options.variant, context.rank());
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  print("accepted");
}

// Other values: rank 0's are taken, buffers too.
void other_values(Context& context) {
  torch::manual_seed(7 + context.rank());
  struct Net : Mlp {
    Net() : Mlp({20, 16, 10}) {
      values = register_buffer("values", torch::randn({5}));
      flags = register_buffer("flags", torch::randint(0, 9, {5}, torch::kInt64));
      half = register_buffer("half", torch::randn({3}).to(torch::kHalf));
    }
    Tensor values, flags, half;
  } model;
  model.layers[1]->to(torch::kBFloat16);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  print("parameters " + ddp.parameter_hash() + " buffers " + buffer_hash(model) + " " +
        bits(model.values));
}

void wrong_models(Context& context) {
  const auto wrap = [&](torch::nn::Module& model) {
    refused([&] { DistributedDataParallel(context.group, model, context.ddp_options()); });
  };
  torch::nn::Module none;
  wrap(none);
  struct Made : torch::nn::Module {
    void add(const std::string& name, const Tensor& tensor, bool with_grad = true) {
      register_parameter(name, tensor, with_grad);
    }
  };
  Made integers;
  integers.add("steps", torch::zeros({3}, torch::kInt64), false);
  wrap(integers);
  Made expanded;
  expanded.add("wide", torch::zeros({1}).expand({5}));
  wrap(expanded);
  Made overlapping;
  const auto memory = torch::zeros({10});
  overlapping.add("front", memory.slice(0, 0, 6));
  overlapping.add("back", memory.slice(0, 4, 10));
  wrap(overlapping);
  Made tied_by_data;
  const auto shared = torch::zeros({10});
  tied_by_data.add("table", shared.detach());
  tied_by_data.add("head", shared.detach());
  wrap(tied_by_data);
  Made neighbours;
  neighbours.add("front", memory.slice(0, 0, 5));
  neighbours.add("back", memory.slice(0, 5, 10));
  wrap(neighbours);
}

void moved_model(Context& context) {
  Training training(context);
  training.step(0);
  training.model.to(torch::kDouble);
  refused([&] { training.ddp.microbatches(training.batches.batch(1)); });
}

void foreign_parameter(Context& context) {
  Training training(context);
  auto stranger = torch::zeros({3}).requires_grad_(true);
  refused([&] {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<Tensor>{stranger});
    AdamW(training.ddp, std::move(groups));
  });
}

// ------------------------------------------------------------------------------ data

void count_of_zero(Context& context) {
  Training training(context);
  training.step(0);
  for (const auto& microbatch : training.ddp.microbatches(training.batches.batch(1))) {
    training.ddp.backward_mean(training.loss(microbatch), 0);
  }
  training.ddp.average();
}

void integer_buffer(Context& context) {
  struct Net : torch::nn::Module {
    Tensor w = register_parameter("w", torch::zeros({3}));
    Tensor last_index = register_buffer("last_index", torch::tensor(int64_t{-1}));
  } model;
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  for (const auto& batch : Batches(8, {.global_batch = 8, .microbatch = 1, .epochs = 2})) {
    for (const auto& microbatch : ddp.microbatches(batch)) {
      model.last_index.fill_(static_cast<int64_t>(microbatch.index()));
      ddp.backward_sum(model.w.sum(), 1);
    }
    ddp.average();
  }
}

// ------------------------------------------------------------------------------ impure functions

// Depends on how often it was called, on the process, or on nothing that counts.
void impure(Context& context) {
  Mlp model({20, 16, 10});
  const ClassData data(48);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  double factor = context.options.variant == "rank" ? 1 + context.rank() : 1;
  for (const auto& batch : Batches(48, {.global_batch = 48, .microbatch = 6, .epochs = 2})) {
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto output = model.forward(rows(context, data.inputs, microbatch.indices()));
      const auto target = rows(context, data.targets, microbatch.indices());
      // Only the last layer sees it, so that the named parameter is that layer's first.
      const auto extra = model.layers[1]->weight.sum() * factor;
      ddp.backward_mean(F::cross_entropy(output, target) + extra,
                        static_cast<double>(target.numel()));
      if (context.options.variant == "count") factor += 1;
    }
    ddp.average();
  }
}

// ------------------------------------------------------------------------------ settings

void change_setting(const std::string& name) {
  auto& global = at::globalContext();
  if (name == "threads") torch::set_num_threads(2);
  if (name == "dtype") torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  if (name == "deterministic") global.setDeterministicAlgorithms(false, false);
  if (name == "autocast") at::autocast::set_autocast_enabled(at::kCPU, true);
  if (name == "flush") global.setFlushDenormal(true);
  if (name == "onednn") global.setUserEnabledMkldnn(false);
  if (name == "matmul") global.setFloat32MatmulPrecision("medium");
  if (name == "attention") global.setSDPUseFlash(false);
}

// Changed in the middle of one microbatch, on every replica that computes it.
void setting_inside(Context& context) {
  Training training(context);
  training.step(0);
  training.step(1, [&](const Microbatch& microbatch) {
    if (microbatch.index() == 2) change_setting(context.options.variant);
  });
}

// Changed before the loop on rank 1 alone.
void setting_on_one(Context& context) {
  Training training(context);
  training.step(0);
  // The variant is a folder to meet in, named after the setting.
  const auto& folder = context.options.variant;
  if (context.rank() == 1) change_setting(folder.substr(folder.rfind('/') + 1));
  bool is_first = true;
  training.step(1, [&](const Microbatch&) {
    if (is_first) context.meet("both");
    is_first = false;
  });
}

// ------------------------------------------------------------------------------ leaving, diverging

// One replica leaves its loop; the others compute the rest. In the step with the audit and in a
// later.
void one_leaves(Context& context) {
  Training training(context);
  for (uint64_t number = 0; number < 4; ++number) {
    for (const auto& microbatch : training.ddp.microbatches(training.batches.batch(number))) {
      if (context.group.size() > 1 && context.rank() == 1 && number % 2 == 0) break;
      training.ddp.backward_mean(training.loss(microbatch), static_cast<double>(microbatch.size()));
    }
    const Step step = training.ddp.average();
    training.optimizer.step();
    print("loss " + bits(step.loss) + " parameters " + training.ddp.parameter_hash());
  }
}

void all_leave(Context& context) {
  Training training(context);
  training.step(0);
  {
    auto loop = training.ddp.microbatches(training.batches.batch(1));
    loop.begin();
  }
  training.ddp.average();
}

// An exception in the loop gives the microbatch back; this process may even go on.
void one_throws(Context& context) {
  Training training(context);
  training.step(0);
  try {
    training.step(1, [&](const Microbatch&) {
      if (context.group.size() > 1 && context.rank() == 1) throw std::runtime_error("boom-2");
    });
  } catch (const std::runtime_error&) {
    training.ddp.average();
    training.optimizer.step();
  }
  training.step(2);
  print("parameters " + training.ddp.parameter_hash());
}

// loss.backward() by habit in an open microbatch; the variant says where.
void stray_backward(Context& context) {
  const std::string variant = context.options.variant;
  Training training(context);
  for (uint64_t number = 0; number < 2; ++number) {
    const bool is_here = variant == "first-step" ? number == 0 : number == 1;
    for (const auto& microbatch : training.ddp.microbatches(training.batches.batch(number))) {
      const bool is_before = variant == "instead" || variant == "beside-zero";
      const auto count = static_cast<double>(microbatch.size());
      const auto stray = [&] { training.loss(microbatch).backward(); };
      if (is_here && is_before) stray();
      if (is_here && variant == "instead") continue;
      const bool is_zero = is_here && variant == "beside-zero";
      training.ddp.backward_mean(training.loss(microbatch), is_zero ? 0 : count);
      if (!is_here || is_before) continue;
      if (variant == "caught") {
        refused(stray);
      } else if (variant == "other-thread") {
        std::exception_ptr thrown;
        std::thread([&] {
          try {
            stray();
          } catch (...) {
            thrown = std::current_exception();
          }
        }).join();
        if (thrown) std::rethrow_exception(thrown);
      } else {
        stray();
      }
    }
    training.ddp.average();
    training.optimizer.step();
  }
}

// Another learning rate on rank 1 in the very last step, after which nothing is compared any more.
void last_step_differs(Context& context) {
  const std::string variant = context.options.variant;
  Mlp model({20, 16, 10});
  const ClassData data(48);
  DistributedDataParallelOptions options = context.ddp_options();
  options.averaging = variant != "averaging-off";
  DistributedDataParallel ddp(context.group, model, options);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (variant == "stock" || variant == "equal-stock") {
    optimizer = std::make_unique<torch::optim::SGD>(model.parameters(), 1e-4);
  } else {
    optimizer = std::make_unique<SGD>(ddp, torch::optim::SGDOptions(1e-4));
  }
  const Batches batches(48, {.global_batch = 48, .microbatch = 6, .epochs = 3});
  for (const auto& batch : batches) {
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto loss =
          F::cross_entropy(model.forward(rows(context, data.inputs, microbatch.indices())),
                           rows(context, data.targets, microbatch.indices()));
      ddp.backward_mean(loss, static_cast<double>(microbatch.size()));
    }
    ddp.average();
    const bool is_last = batch.step() + 1 == batches.step_count();
    if (is_last && context.rank() == 1 && !variant.starts_with("equal")) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(2e-4);
    }
    if (is_last && context.rank() == 1 && variant == "not-updated") return;
    optimizer->step();
    if (batch.step() == 1 && context.rank() == 1 && variant == "left-early") return;
  }
}

void one_changes_parameters(Context& context) {
  Training training(context);
  training.step(0);
  if (context.rank() == 1) {
    const torch::NoGradGuard no_grad;
    training.model.layers[1]->bias.add_(0.25);
  }
  // Hashed again by a stock optimizer's rule: at the next call into the library.
  training.step(1);
  training.step(2);
}

}  // namespace

std::map<std::string, Scenario> refusal_scenarios() {
  return {{"wrong_calls", wrong_calls},
          {"right_calls", right_calls},
          {"stale_graph", stale_graph},
          {"other_structure", other_structure},
          {"other_values", other_values},
          {"wrong_models", wrong_models},
          {"moved_model", moved_model},
          {"foreign_parameter", foreign_parameter},
          {"count_of_zero", count_of_zero},
          {"integer_buffer", integer_buffer},
          {"impure", impure},
          {"setting_inside", setting_inside},
          {"setting_on_one", setting_on_one},
          {"one_leaves", one_leaves},
          {"all_leave", all_leave},
          {"one_throws", one_throws},
          {"stray_backward", stray_backward},
          {"last_step_differs", last_step_differs},
          {"one_changes_parameters", one_changes_parameters}};
}

}  // namespace lockstep::probe
