#include <ATen/autocast_mode.h>

#include "tests/probe.h"

// Scenarios whose every line must be the same for any number of replicas.

namespace lockstep::probe {

namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

using Optimizer = torch::optim::Optimizer;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(DistributedDataParallel&)>;

/// A plan that classifies cancelling rows with `model`, which has a forward(Tensor).
template <class Model>
Plan classify(Context& context, std::shared_ptr<Model> model) {
  const auto data = std::make_shared<ClassData>(200);
  Plan plan;
  plan.model = model;
  plan.compute = [&context, model, data](DistributedDataParallel& ddp,
                                         const Microbatch& microbatch) {
    const auto output = model->forward(rows(context, data->inputs, microbatch.indices()));
    const auto target = rows(context, data->targets, microbatch.indices());
    const auto loss = F::cross_entropy(output.to(torch::kFloat), target);
    microbatch.record(0, loss.template item<double>() * 1e9);
    microbatch.record(7, (output.argmax(1) == target).sum().template item<double>());
    ddp.backward_mean(loss, static_cast<double>(target.numel()));
  };
  return plan;
}

Plan classify_mlp(Context& context, double dropout_rate = 0) {
  return classify(context,
                  std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10}, dropout_rate));
}

void dropout(Context& context) { train(context, classify_mlp(context, 0.5)); }

// More than a megabyte of gradient: several buckets of any size.
void wide(Context& context) {
  auto plan = classify(context, std::make_shared<Mlp>(std::vector<int64_t>{20, 512, 520, 10}));
  plan.batches.epochs = 1;
  train(context, plan);
}

// Products of odd lengths, of one row and of several, whose kernels look at addresses (rule 10) and
// at the number of threads (rule 1).
void odd_lengths(Context& context) {
  for (const uint64_t microbatch : {1, 5}) {
    const auto data = std::make_shared<ClassData>(60);
    data->inputs = cancelling_rows(60, {1003});
    const auto model = std::make_shared<Mlp>(std::vector<int64_t>{1003, 444, 57, 10});
    Plan plan;
    plan.model = model;
    plan.compute = [&context, model, data](DistributedDataParallel& ddp,
                                           const Microbatch& microbatch_now) {
      const auto input = rows(context, data->inputs, microbatch_now.indices());
      const auto target = rows(context, data->targets, microbatch_now.indices());
      // Products with the input as it lies there, and with pieces of it.
      const auto sums = torch::matmul(input, input.t()).sum() + input.norm() + input.sum();
      const auto loss = F::cross_entropy(model->forward(input), target);
      microbatch_now.record(1, sums.item<double>());
      ddp.backward_mean(loss, static_cast<double>(target.numel()));
    };
    plan.sample_count = 60;
    plan.batches = {.global_batch = 20, .microbatch = microbatch, .epochs = 1, .seed = 6};
    train(context, plan);
  }
}

// Long enough for a death at any point to be followed by many steps.
void long_run(Context& context) {
  auto plan = classify_mlp(context, 0.5);
  plan.batches.epochs = 3;
  train(context, plan);
}

// Enough steps for a replica to come first at each point of a step.
void many_steps(Context& context) {
  auto plan = classify_mlp(context, 0.5);
  plan.batches = {.global_batch = 60, .microbatch = 7, .epochs = 0, .steps = 60};
  train(context, plan);
}

void two_microbatches(Context& context) {
  auto plan = classify_mlp(context, 0.25);
  plan.batches = {.global_batch = 20, .microbatch = 13, .epochs = 1, .seed = 3};
  train(context, plan);
}

void one_microbatch(Context& context) {
  auto plan = classify_mlp(context);
  plan.batches = {.global_batch = 40, .microbatch = 40, .epochs = 2, .seed = 4};
  train(context, plan);
}

// Every other microbatch of the first five goes on without a backward.
void no_backward(Context& context) {
  auto plan = classify_mlp(context);
  const auto compute = plan.compute;
  plan.compute = [compute](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    if (microbatch.index() < 5 && microbatch.index() % 2 == 0 && microbatch.size() == 7) return;
    compute(ddp, microbatch);
  };
  // The last batch of an epoch has 3 microbatches; its middle one is left.
  train(context, plan);
}

// Count 0 in the whole share of the first of four replicas, and in one more.
void zero_counts(Context& context) {
  auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 16, 10});
  auto plan = classify(context, model);
  const auto data = std::make_shared<ClassData>(200);
  plan.compute = [&context, model, data](DistributedDataParallel& ddp,
                                         const Microbatch& microbatch) {
    const auto output = model->forward(rows(context, data->inputs, microbatch.indices()));
    const auto target = rows(context, data->targets, microbatch.indices());
    // Masked as language models do it: the mean over nothing is NaN, and its count is 0.
    const bool is_masked = microbatch.index() < 2 || microbatch.index() == 6;
    const auto seen = is_masked ? torch::full_like(target, -100) : target;
    const auto options = F::CrossEntropyFuncOptions().ignore_index(-100);
    const auto loss = F::cross_entropy(output, seen, options);
    ddp.backward_mean(loss, static_cast<double>((seen != -100).sum().item<int64_t>()));
  };
  plan.batches = {.global_batch = 56, .microbatch = 7, .epochs = 0, .steps = 5};
  train(context, plan);
}

void weighted_counts(Context& context) {
  auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 16, 10});
  auto plan = classify(context, model);
  const auto data = std::make_shared<ClassData>(200);
  const auto weights = torch::rand({200}) * 1e3;
  plan.compute = [&context, model, data, weights](DistributedDataParallel& ddp,
                                                  const Microbatch& microbatch) {
    const auto output = model->forward(rows(context, data->inputs, microbatch.indices()));
    const auto target = rows(context, data->targets, microbatch.indices());
    const auto weight = rows(context, weights, microbatch.indices());
    const auto options = F::CrossEntropyFuncOptions().reduction(torch::kNone);
    const auto loss = (F::cross_entropy(output, target, options) * weight).sum();
    ddp.backward_sum(loss, weight.sum().item<double>());
  };
  train(context, plan);
}

// ------------------------------------------------------------------------------ odd structures

struct Tied : torch::nn::Module {
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(10, 16));
  torch::nn::Linear mix = register_module("mix", torch::nn::Linear(16, 16));
  Tensor head = register_parameter("head", table->weight);

  Tensor forward(const Tensor& input) {
    const auto ids = (input.slice(1, 0, 5) > 0).to(torch::kLong).cumsum(1);
    return F::linear(torch::tanh(mix->forward(table->forward(ids).sum(1))), head);
  }
};

void tied(Context& context) { train(context, classify(context, std::make_shared<Tied>())); }

struct TwoNames : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 16));
  torch::nn::Linear x = register_module("x", torch::nn::Linear(16, 16));
  torch::nn::Linear y = register_module("y", x);
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 10));

  Tensor forward(const Tensor& input) {
    return last(torch::relu(y(torch::relu(x(torch::relu(first(input)))))));
  }
};

void two_names(Context& context) {
  auto plan = classify(context, std::make_shared<TwoNames>());
  plan.optimizer = [](DistributedDataParallel& ddp) {
    auto made = std::make_unique<SGD>(ddp, torch::optim::SGDOptions(1e-5).momentum(0.9));
    made->clip_norm(100);
    return made;
  };
  train(context, plan);
}

// Two losses with a backward each, from two graphs; `is_second` says where the second one is.
void two_losses(Context& context, const std::function<bool(uint64_t, uint32_t)>& is_second) {
  auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 24, 10}, 0.2);
  auto plan = classify(context, model);
  const auto compute = plan.compute;
  const auto data = std::make_shared<ClassData>(200);
  const auto now = std::make_shared<uint64_t>(0);
  plan.before_step = [now](uint64_t step) { *now = step; };
  plan.compute = [=, &context](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    compute(ddp, microbatch);
    if (!is_second(*now, microbatch.index())) return;
    const auto output = model->forward(rows(context, data->inputs, microbatch.indices()));
    ddp.backward_sum(output.square().mean(), 0);
  };
  train(context, plan);
}

void two_backwards(Context& context) {
  two_losses(context, [](uint64_t, uint32_t) { return true; });
}

// As checkpointing may: a parameter fires once for three steps, then twice in one microbatch.
void late_second_firing(Context& context) {
  two_losses(context, [](uint64_t step, uint32_t m) { return step >= 3 && m % 4 == 1; });
}

// In the very first step one microbatch fires twice, and all replicas repeat that one for the
// audit.
void one_fires_twice(Context& context) {
  two_losses(context, [](uint64_t, uint32_t m) { return m == 0; });
}

/// As checkpointing does it: forward without a graph, backward computes forward again and runs a
/// backward pass of its own inside the outer one.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(torch::autograd::AutogradContext* saved, const Tensor& input, Mlp* part) {
    saved->save_for_backward({input});
    saved->saved_data["part"] = reinterpret_cast<int64_t>(part);
    return part->forward(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 const torch::autograd::variable_list& gradients) {
    auto* part = reinterpret_cast<Mlp*>(saved->saved_data["part"].toInt());
    const torch::AutoGradMode with_grad(true);
    const auto input = saved->get_saved_variables()[0].detach().requires_grad_(true);
    part->forward(input).backward(gradients[0]);
    return {input.grad(), Tensor()};
  }
};

struct Checkpointed : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 16));
  std::shared_ptr<Mlp> part =
      register_module("part", std::make_shared<Mlp>(std::vector<int64_t>{16, 24, 16}));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 10));

  Tensor forward(const Tensor& input) {
    const auto once = Checkpoint::apply(torch::tanh(first(input)), part.get());
    return last(Checkpoint::apply(torch::tanh(once), part.get()));
  }
};

void checkpointed(Context& context) {
  train(context, classify(context, std::make_shared<Checkpointed>()));
}

struct Partly : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(20, 10));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(10, 5));
  Tensor shared_bias = register_parameter("shared_bias", never->bias);
  torch::nn::Linear sometimes = register_module("sometimes", torch::nn::Linear(20, 10));
  torch::nn::Linear rarely = register_module("rarely", torch::nn::Linear(20, 10));
  bool is_with_sometimes = false;
  bool is_with_rarely = false;

  Tensor forward(const Tensor& input) {
    auto output = used(input);
    if (is_with_sometimes) output = output + sometimes(input);
    if (is_with_rarely) output = output + rarely(input);
    return output;
  }
};

// `sometimes` is touched by one microbatch of each step, `rarely` in two of the steps.
Plan partly_used(Context& context) {
  const auto model = std::make_shared<Partly>();
  auto plan = classify(context, model);
  const auto compute = plan.compute;
  const auto now = std::make_shared<uint64_t>(0);
  plan.before_step = [now](uint64_t step) { *now = step; };
  plan.compute = [=](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    model->is_with_sometimes = microbatch.index() == 2;
    model->is_with_rarely = (*now == 2 || *now == 6) && microbatch.index() % 3 == 1;
    compute(ddp, microbatch);
  };
  return plan;
}

void unused(Context& context) { train(context, partly_used(context)); }

void unused_stock(Context& context) {
  auto plan = partly_used(context);
  plan.optimizer = [model = plan.model](DistributedDataParallel&) {
    return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                 torch::optim::AdamWOptions(1e-3));
  };
  train(context, plan);
}

struct Empty : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 0));
  torch::nn::Linear used = register_module("used", torch::nn::Linear(20, 10));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(10, 0));

  Tensor forward(const Tensor& input) {
    const auto output = used(input);
    return output + first(input).sum() + last(output).sum();
  }
};

void empty_parameters(Context& context) {
  train(context, classify(context, std::make_shared<Empty>()));
}

struct AllEmpty : torch::nn::Module {
  torch::nn::Linear only = register_module("only", torch::nn::Linear(20, 0));
  Tensor base = register_parameter("base", torch::zeros({10}));
  Tensor forward(const Tensor& input) {
    return base.expand({input.size(0), 10}) + only(input).sum();
  }
};

void tiny(Context& context) { train(context, classify(context, std::make_shared<AllEmpty>())); }

void frozen(Context& context) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 24, 24, 10});
  auto plan = classify(context, model);
  for (auto& parameter : model->layers[0]->parameters()) parameter.requires_grad_(false);
  plan.before_step = [model](uint64_t step) {
    if (step != 5) return;
    for (auto& parameter : model->layers[0]->parameters()) parameter.requires_grad_(true);
  };
  train(context, plan);
}

void gradient_taken_away(Context& context) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 24, 24, 10});
  auto plan = classify(context, model);
  plan.optimizer = [](DistributedDataParallel& ddp) {
    return std::make_unique<SGD>(ddp, torch::optim::SGDOptions(1e-5).momentum(0.9));
  };
  plan.after_average = [model](DistributedDataParallel&, Optimizer&, const Step& step) {
    if (step.number <= 5) model->layers[1]->weight.mutable_grad() = Tensor();
    print("weight 1 " + hash(model->layers[1]->weight));
  };
  train(context, plan);
}

struct Sparse : torch::nn::Module {
  torch::nn::Embedding table = register_module(
      "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 8).sparse(true)));
  torch::nn::Embedding spare = register_module(
      "spare", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 8).sparse(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 10));

  Tensor forward(const Tensor& input) {
    const auto ids = (input.slice(1, 0, 5) > 0).to(torch::kLong).cumsum(1);
    return head(torch::tanh(table(ids).sum(1)));
  }
};

void sparse(Context& context) { train(context, classify(context, std::make_shared<Sparse>())); }

struct Image : torch::nn::Module {
  torch::nn::Conv2d first =
      register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).padding(1)));
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8 * 5, 10));

  explicit Image(bool has_norm) {
    if (has_norm) norm = register_module("norm", torch::nn::BatchNorm2d(8));
    first->weight.set_data(first->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor forward(const Tensor& input) {
    const auto image = input.view({-1, 1, 4, 5}).expand({-1, 4, 4, 5});
    auto output = first(image.contiguous(at::MemoryFormat::ChannelsLast));
    if (norm) output = norm(output);
    return head(torch::relu(output).sum(2).flatten(1));
  }
};

void channels_last(Context& context) {
  const auto model = std::make_shared<Image>(false);
  auto plan = classify(context, model);
  plan.after_average = [model](DistributedDataParallel&, Optimizer&, const Step& step) {
    const auto& weight = model->first->weight;
    if (step.number > 1) return;
    print("channels last " + std::to_string(weight.is_contiguous(at::MemoryFormat::ChannelsLast)) +
          std::to_string(weight.grad().strides() == weight.strides()));
  };
  train(context, plan);
}

// ------------------------------------------------------------------------------------- buffers

struct Normed : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 10));
  Tensor forward(const Tensor& input) { return last(torch::relu(norm(first(input)))); }
};

void batch_norm(Context& context) {
  const auto model = std::make_shared<Normed>();
  auto plan = classify(context, model);
  plan.after_average = [model](DistributedDataParallel&, Optimizer&, const Step&) {
    print("tracked " + std::to_string(model->norm->num_batches_tracked.item<int64_t>()) + " mean " +
          hash(model->norm->running_mean) + " variance " + hash(model->norm->running_var));
  };
  train(context, plan);
}

void batch_norm_image(Context& context) {
  train(context, classify(context, std::make_shared<Image>(true)));
}

struct Buffered : torch::nn::Module {
  torch::nn::Linear head = register_module("head", torch::nn::Linear(20, 10));
  Tensor flags = register_buffer("flags", torch::rand({7}) > 0.5);
  Tensor bytes = register_buffer("bytes", torch::arange(5).to(torch::kByte));
  Tensor shorts = register_buffer("shorts", torch::arange(5).to(torch::kShort));
  Tensor longs = register_buffer("longs", torch::arange(5));
  Tensor halves = register_buffer("halves", torch::rand({3}).to(torch::kHalf));
  Tensor brains = register_buffer("brains", torch::rand({3}).to(torch::kBFloat16));
  Tensor doubles = register_buffer("doubles", torch::rand({3}, torch::kDouble));
  Tensor counter = register_buffer("counter", torch::tensor(int64_t{5}));
  Tensor empty = register_buffer("empty", torch::empty({0, 3}));
  Tensor moving = register_buffer("moving", torch::zeros({20}));
  Tensor moving_half = register_buffer("moving_half", torch::zeros({20}, torch::kHalf));
  Tensor moving_double = register_buffer("moving_double", torch::zeros({20}, torch::kDouble));

  Tensor forward(const Tensor& input) {
    const torch::NoGradGuard no_grad;
    if (is_training()) {
      const auto mean = input.mean(0);
      moving.mul_(0.9).add_(mean, 0.1);
      moving_half.mul_(0.9).add_(mean.to(torch::kHalf), 0.001);
      moving_double.mul_(0.9).add_(mean.to(torch::kDouble), 0.1);
      counter.add_(1);
      longs.add_(3);
      flags.logical_not_();
    }
    const torch::AutoGradMode with_grad(true);
    return head(input - moving.clone());
  }
};

void buffers(Context& context) {
  const auto model = std::make_shared<Buffered>();
  auto plan = classify(context, model);
  plan.after_average = [model](DistributedDataParallel&, Optimizer&, const Step&) {
    std::string text = "buffers";
    for (const auto& item : model->named_buffers()) text += " " + hash(item.value());
    print(text + " counter " + std::to_string(model->counter.item<int64_t>()));
  };
  train(context, plan);
}

// ----------------------------------------------------------------------------------- precision

void with_autocast(Context& context, bool is_cache_cleared) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10});
  auto plan = classify(context, model);
  const auto data = std::make_shared<ClassData>(200);
  plan.compute = [=, &context](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto output = model->forward(rows(context, data->inputs, microbatch.indices()));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (is_cache_cleared) at::autocast::clear_cache();
    const auto target = rows(context, data->targets, microbatch.indices());
    ddp.backward_mean(F::cross_entropy(output.to(torch::kFloat), target),
                      static_cast<double>(target.numel()));
  };
  train(context, plan);
}

void autocast(Context& context) { with_autocast(context, false); }
void autocast_cleared(Context& context) { with_autocast(context, true); }

void in_dtype(Context& context, torch::Dtype dtype, bool is_adamw = false) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10});
  model->to(dtype);
  auto plan = classify(context, model);
  const auto data = std::make_shared<ClassData>(200);
  data->inputs = torch::randn({200, 20});
  plan.compute = [=, &context](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    const auto input = rows(context, data->inputs.to(dtype), microbatch.indices());
    const auto target = rows(context, data->targets, microbatch.indices());
    const auto output = model->forward(input);
    const auto wide = output.to(dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
    ddp.backward_mean(F::cross_entropy(wide, target), static_cast<double>(target.numel()));
  };
  if (!is_adamw) {
    plan.optimizer = [](DistributedDataParallel& ddp) {
      return std::make_unique<SGD>(ddp, torch::optim::SGDOptions(1e-2).momentum(0.9));
    };
  }
  train(context, plan);
}

void float64(Context& context) { in_dtype(context, torch::kDouble); }
void bfloat16(Context& context) { in_dtype(context, torch::kBFloat16); }
void float16(Context& context) { in_dtype(context, torch::kHalf); }
void float64_adamw(Context& context) { in_dtype(context, torch::kDouble, true); }
void bfloat16_adamw(Context& context) { in_dtype(context, torch::kBFloat16, true); }

struct Mixed : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(20, 16));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(16, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 10));
  Mixed() {
    middle->to(torch::kBFloat16);
    last->to(torch::kDouble);
  }
  Tensor forward(const Tensor& input) {
    const auto hidden = middle(torch::tanh(first(input)).to(torch::kBFloat16));
    return last(torch::relu(hidden).to(torch::kDouble));
  }
};

void mixed_dtypes(Context& context) {
  train(context, classify(context, std::make_shared<Mixed>()));
}

// ---------------------------------------------------------------------------------- optimizers

template <class Kind, class KindOptions>
void with_stock(Context& context, KindOptions options) {
  auto plan = classify_mlp(context);
  plan.optimizer = [model = plan.model, options](DistributedDataParallel&) {
    return std::make_unique<Kind>(model->parameters(), options);
  };
  train(context, plan);
}

void stock_adamw(Context& context) {
  with_stock<torch::optim::AdamW>(context, torch::optim::AdamWOptions(1e-3));
}
void stock_adam(Context& context) {
  with_stock<torch::optim::Adam>(context, torch::optim::AdamOptions(1e-3).amsgrad(true));
}
void stock_sgd(Context& context) {
  with_stock<torch::optim::SGD>(context, torch::optim::SGDOptions(1e-6).momentum(0.9));
}
void stock_rmsprop(Context& context) {
  with_stock<torch::optim::RMSprop>(context, torch::optim::RMSpropOptions(1e-4).momentum(0.5));
}

void fused_sgd(Context& context) {
  auto plan = classify_mlp(context);
  plan.optimizer = [](DistributedDataParallel& ddp) {
    const auto options = torch::optim::SGDOptions(1e-6).momentum(0.9).nesterov(true);
    return std::make_unique<SGD>(ddp, torch::optim::SGDOptions(options).weight_decay(0.1));
  };
  train(context, plan);
}

void fused_amsgrad(Context& context) {
  auto plan = classify_mlp(context);
  plan.optimizer = [](DistributedDataParallel& ddp) {
    return std::make_unique<AdamW>(
        ddp, torch::optim::AdamWOptions(1e-3).amsgrad(true).weight_decay(0.2));
  };
  train(context, plan);
}

void groups(Context& context) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10});
  auto plan = classify(context, model);
  plan.optimizer = [model](DistributedDataParallel& ddp) {
    std::vector<Tensor> weights;
    std::vector<Tensor> biases;
    for (const auto& item : model->named_parameters()) {
      (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
    }
    std::vector<torch::optim::OptimizerParamGroup> made;
    made.emplace_back(weights, std::make_unique<torch::optim::AdamWOptions>(
                                   torch::optim::AdamWOptions(1e-3).weight_decay(0.1)));
    made.emplace_back(biases, std::make_unique<torch::optim::AdamWOptions>(
                                  torch::optim::AdamWOptions(1e-2).weight_decay(0)));
    return std::make_unique<AdamW>(ddp, made);
  };
  // As a schedule would: the rate changes with the step.
  plan.after_average = [](DistributedDataParallel&, Optimizer& optimizer, const Step& step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(1e-3 / static_cast<double>(step.number));
    }
  };
  train(context, plan);
}

void clipped(Context& context) {
  auto plan = classify_mlp(context);
  plan.optimizer = [](DistributedDataParallel& ddp) {
    auto made = std::make_unique<AdamW>(ddp, torch::optim::AdamWOptions(1e-3));
    made->clip_norm(50);
    return made;
  };
  train(context, plan);
}

// The gradients are changed in place, or replaced by changed copies: the bits must be the same.
void with_changed_gradients(Context& context, const std::function<void(Tensor&)>& change) {
  // Odd widths: no parameter ends at a whole vector.
  auto plan = classify(context, std::make_shared<Mlp>(std::vector<int64_t>{20, 47, 33, 11}));
  plan.after_average = [model = plan.model, change](DistributedDataParallel&, Optimizer&,
                                                    const Step&) {
    torch::nn::utils::clip_grad_norm_(model->parameters(), 10.0);
    for (auto& parameter : model->parameters()) change(parameter);
    print("changed " + gradient_hash(*model));
  };
  train(context, plan);
}

void noise_in_place(Context& context) {
  with_changed_gradients(context, [](Tensor& parameter) {
    parameter.mutable_grad().add_(torch::randn_like(parameter), 0.01);
  });
}

void noise_on_copy(Context& context) {
  with_changed_gradients(context, [](Tensor& parameter) {
    parameter.mutable_grad() = torch::add(parameter.grad(), torch::randn_like(parameter), 0.01);
  });
}

// --------------------------------------------------------------------------- several models

struct Gan {
  std::shared_ptr<Mlp> generator = std::make_shared<Mlp>(std::vector<int64_t>{4, 16, 20});
  std::shared_ptr<Mlp> critic = std::make_shared<Mlp>(std::vector<int64_t>{20, 16, 1}, 0.2);
};

void gan(Context& context) {
  Gan models;
  const auto real = torch::randn({60, 20});
  DistributedDataParallel generator(context.group, *models.generator, context.ddp_options());
  DistributedDataParallel critic(context.group, *models.critic, context.ddp_options());
  AdamW generator_optimizer(generator, torch::optim::AdamWOptions(1e-3));
  SGD critic_optimizer(critic, torch::optim::SGDOptions(1e-2));
  for (const auto& batch : Batches(60, {.global_batch = 30, .microbatch = 7, .epochs = 3})) {
    for (const auto& microbatch : critic.microbatches(batch)) {
      const auto count = static_cast<int64_t>(microbatch.size());
      const auto fake = models.generator->forward(torch::randn({count, 4})).detach();
      const auto truth = rows(context, real, microbatch.indices());
      const auto loss = models.critic->forward(fake).sum() - models.critic->forward(truth).sum();
      critic.backward_sum(loss, static_cast<double>(count));
    }
    const Step critic_step = critic.average();
    critic_optimizer.step();
    for (const auto& microbatch : generator.microbatches(batch)) {
      const auto count = static_cast<int64_t>(microbatch.size());
      // The critic is frozen here, as one does it: its gradients belong to its own step.
      for (auto& parameter : models.critic->parameters()) parameter.requires_grad_(false);
      const auto fake = models.generator->forward(torch::randn({count, 4}));
      generator.backward_sum(-models.critic->forward(fake).sum(), static_cast<double>(count));
      for (auto& parameter : models.critic->parameters()) parameter.requires_grad_(true);
    }
    const Step generator_step = generator.average();
    generator_optimizer.step();
    print_step(context, critic_step, "", critic, *models.critic);
    print_step(context, generator_step, "", generator, *models.generator);
  }
  print("gan state " + generator.state_hash(generator_optimizer) + " " +
        critic.state_hash(critic_optimizer));
}

// -------------------------------------------------------------------------------- evaluation

void evaluation(Context& context) {
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10}, 0.5);
  auto plan = classify(context, model);
  const auto data = std::make_shared<ClassData>(101);
  plan.batches.epochs = 1;
  model->dropout->eval();  // each part is given back in its own mode
  plan.after_update = [=, &context](DistributedDataParallel& ddp) {
    for (const uint64_t microbatch : {1, 7, 101}) {
      const auto result = ddp.evaluate(101, microbatch, [&](const std::vector<size_t>& indices) {
        const auto target = rows(context, data->targets, indices);
        const auto output = model->forward(rows(context, data->inputs, indices));
        const auto options = F::CrossEntropyFuncOptions().reduction(torch::kSum);
        EvaluationPart part;
        part.loss = F::cross_entropy(output, target, options).item<double>();
        part.count = static_cast<double>(indices.size());
        part.metrics[0] = output.requires_grad() || model->is_training() ? 1 : 0;
        part.metrics[1] = part.loss * 1e8;
        return part;
      });
      print("evaluation " + bits(result.loss) + " " + bits(result.count) + " " +
            bits(result.metrics[0]) + " " + bits(result.metrics[1]) + " training " +
            std::to_string(model->is_training()) + std::to_string(model->dropout->is_training()) +
            std::to_string(model->layers[0]->is_training()));
    }
  };
  train(context, plan);
}

// Clips, then evaluates between average() and the update, or not: that must leave the update as it
// is. The variant says whether, and whose optimizer: "evaluated-stock", "plain-fused".
void evaluation_before_update(Context& context) {
  const auto& variant = context.options.variant;
  const bool is_evaluated = variant.starts_with("evaluated");
  const auto model = std::make_shared<Mlp>(std::vector<int64_t>{20, 48, 32, 10}, 0.5);
  auto plan = classify(context, model);
  if (variant.ends_with("stock")) {
    plan.optimizer = [model](DistributedDataParallel&) {
      return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                   torch::optim::AdamWOptions(3e-3));
    };
  }
  const auto evaluate = [model](DistributedDataParallel& ddp) {
    const auto result = ddp.evaluate(10, 3, [&](const std::vector<size_t>& indices) {
      const auto count = static_cast<int64_t>(indices.size());
      const double sum = model->forward(torch::ones({count, 20})).sum().item<double>();
      return EvaluationPart{sum, static_cast<double>(count), {}};
    });
    print("# evaluation " + bits(result.loss));
  };
  plan.after_average = [=](DistributedDataParallel& ddp, Optimizer&, const Step&) {
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    if (!is_evaluated) return;
    evaluate(ddp);
    evaluate(ddp);
  };
  plan.after_update = [=](DistributedDataParallel& ddp) {
    if (is_evaluated) evaluate(ddp);
  };
  train(context, plan);
}

// Wherever the user draws, nothing may depend on which microbatches this replica happened to get.
void drawing(Context& context) {
  auto plan = classify_mlp(context, 0.5);
  const auto compute = plan.compute;
  plan.before_step = [](uint64_t) { print("before " + bits(torch::rand({1}).item<double>())); };
  plan.compute = [compute](DistributedDataParallel& ddp, const Microbatch& microbatch) {
    torch::rand({static_cast<int64_t>(microbatch.index()) + 1});
    compute(ddp, microbatch);
    torch::rand({3});
  };
  plan.after_average = [](DistributedDataParallel&, Optimizer&, const Step&) {
    print("after " + bits(torch::rand({1}).item<double>()));
  };
  train(context, plan);
}

}  // namespace

std::map<std::string, Scenario> exactness_scenarios() {
  return {{"dropout", dropout},
          {"wide", wide},
          {"long_run", long_run},
          {"odd_lengths", odd_lengths},
          {"many_steps", many_steps},
          {"two_microbatches", two_microbatches},
          {"one_microbatch", one_microbatch},
          {"no_backward", no_backward},
          {"zero_counts", zero_counts},
          {"weighted_counts", weighted_counts},
          {"tied", tied},
          {"two_names", two_names},
          {"two_backwards", two_backwards},
          {"late_second_firing", late_second_firing},
          {"one_fires_twice", one_fires_twice},
          {"checkpointed", checkpointed},
          {"unused", unused},
          {"unused_stock", unused_stock},
          {"empty_parameters", empty_parameters},
          {"tiny", tiny},
          {"frozen", frozen},
          {"gradient_taken_away", gradient_taken_away},
          {"sparse", sparse},
          {"channels_last", channels_last},
          {"batch_norm", batch_norm},
          {"batch_norm_image", batch_norm_image},
          {"buffers", buffers},
          {"autocast", autocast},
          {"autocast_cleared", autocast_cleared},
          {"float64", float64},
          {"bfloat16", bfloat16},
          {"float16", float16},
          {"float64_adamw", float64_adamw},
          {"bfloat16_adamw", bfloat16_adamw},
          {"mixed_dtypes", mixed_dtypes},
          {"stock_adamw", stock_adamw},
          {"stock_adam", stock_adam},
          {"stock_sgd", stock_sgd},
          {"stock_rmsprop", stock_rmsprop},
          {"fused_sgd", fused_sgd},
          {"fused_amsgrad", fused_amsgrad},
          {"groups", groups},
          {"clipped", clipped},
          {"noise_in_place", noise_in_place},
          {"noise_on_copy", noise_on_copy},
          {"gan", gan},
          {"evaluation", evaluation},
          {"evaluation_before_update", evaluation_before_update},
          {"drawing", drawing}};
}

}  // namespace lockstep::probe
