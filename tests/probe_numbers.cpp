#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include <ATen/Context.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/torch.h>

#include "tests/probe.h"

// Scenarios whose figures are known: worked examples, and comparisons with a plain LibTorch loop.

namespace lockstep::probe {

namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

BatchesOptions in_order(uint64_t global_batch, uint64_t microbatch, uint64_t steps = 1) {
  return {.global_batch = global_batch,
          .microbatch = microbatch,
          .epochs = 0,
          .steps = steps,
          .shuffle = false};
}

using Compute = std::function<void(DistributedDataParallel&, const Microbatch&)>;

Step one_step(DistributedDataParallel& ddp, const Batch& batch, const Compute& compute) {
  for (const auto& microbatch : ddp.microbatches(batch)) compute(ddp, microbatch);
  return ddp.average();
}

Step one_step(DistributedDataParallel& ddp, const BatchesOptions& options, const Compute& compute) {
  const Batches batches(options.global_batch, options);
  return one_step(ddp, batches.batch(0), compute);
}

std::string text(int64_t value) { return std::to_string(value); }

// ------------------------------------------------------------------------------ the idea's
// examples

// Two replicas whose own gradients are given.
void average_of_two(Context& context) {
  Weights model(torch::zeros({3}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const auto gradients = torch::tensor({{0.2f, -0.1f, 0.5f}, {0.4f, 0.0f, 0.3f}});
  one_step(ddp, in_order(2, 1), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
    d.backward_sum((model.w * gradients[microbatch.index()]).sum(), 1);
  });
  print("mean " + bits(model.w.grad()));
}

// Who computes what at first: every replica holds its first microbatch until all have one.
void first_claims(Context& context, uint64_t sample_count) {
  Weights model(torch::zeros({3}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  bool is_first = true;
  one_step(ddp, in_order(sample_count, 32),
           [&](DistributedDataParallel& d, const Microbatch& microbatch) {
             if (is_first) {
               print("# first sample " + text(static_cast<int64_t>(microbatch.indices()[0])));
               context.meet("claimed");
             }
             is_first = false;
             d.backward_mean(model.w.sum(), static_cast<double>(microbatch.size()));
           });
}

// With averaging off shares are fixed, so they can be counted.
void fixed_shares(Context& context, uint64_t sample_count) {
  Weights model(torch::zeros({3}));
  auto options = context.ddp_options();
  options.averaging = false;
  DistributedDataParallel ddp(context.group, model, options);
  std::vector<size_t> mine;
  one_step(ddp, in_order(sample_count, 32),
           [&](DistributedDataParallel& d, const Microbatch& microbatch) {
             mine.insert(mine.end(), microbatch.indices().begin(), microbatch.indices().end());
             d.backward_mean(model.w.sum(), static_cast<double>(microbatch.size()));
           });
  const bool is_one_run = mine.back() - mine.front() + 1 == mine.size();
  print("# share " + text(static_cast<int64_t>(mine.front())) + " " +
        text(static_cast<int64_t>(mine.back())) + " count " +
        text(static_cast<int64_t>(mine.size())) + " run " + text(is_one_run));
}

void shares_of_64(Context& context) {
  first_claims(context, 64);
  fixed_shares(context, 64);
}
void shares_of_1024(Context& context) {
  first_claims(context, 1024);
  fixed_shares(context, 1024);
}

// Four weights, eight samples, L = 0.5 ||w - x||^2, w := w - 0.1 g.
void four_by_eight(Context& context) {
  const auto samples = torch::randn({8, 4});
  Weights model(torch::zeros({4}));
  auto plain = torch::zeros({4}).requires_grad_(true);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  SGD optimizer(ddp, torch::optim::SGDOptions(0.1));
  const Batches batches(8, in_order(8, 2, 10));
  for (const auto& batch : batches) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      const auto x = rows(context, samples, microbatch.indices());
      d.backward_mean(0.5 * (model.w - x).square().sum(1).mean(), 2);
    });
    optimizer.step();
    plain.mutable_grad() = Tensor();
    (0.5 * (plain - samples).square().sum(1).mean()).backward();
    const torch::NoGradGuard no_grad;
    plain -= 0.1 * plain.grad();
    print("w " + bits(model.w));
  }
  print("plain " + bits(plain));
  print("apart " + bits((plain - model.w).abs().max().item<double>()));
}

// One replica's gradient of its own part, before and without averaging.
void together_or_apart(Context& context, bool averaging) {
  Mlp model({20, 16, 10});
  const ClassData data(48);
  auto options = context.ddp_options();
  options.averaging = averaging;
  DistributedDataParallel ddp(context.group, model, options);
  SGD optimizer(ddp, torch::optim::SGDOptions(1e-5));
  const Batches batches(48, in_order(48, 6, 3));
  for (const auto& batch : batches) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      const auto target = rows(context, data.targets, microbatch.indices());
      const auto output = model.forward(rows(context, data.inputs, microbatch.indices()));
      d.backward_mean(F::cross_entropy(output, target), static_cast<double>(target.numel()));
    });
    const auto gradients = gradient_hash(model);
    optimizer.step();
    print("# gradients " + gradients + " parameters " + ddp.parameter_hash() + " drift " +
          bits(ddp.drift()));
  }
}

void averaging_on(Context& context) { together_or_apart(context, true); }
void averaging_off(Context& context) { together_or_apart(context, false); }

// Exchanges and bytes for one sample count in so many microbatches. Every replica holds its first
// microbatch until all have one, so that the number of partials is not left to chance.
void exchange(Context& context, uint64_t samples, uint64_t microbatch_count, bool is_met) {
  Mlp model({20, 16, 10});
  const ClassData data(static_cast<int64_t>(samples));
  auto options = context.ddp_options();
  options.audit_first_step = false;
  DistributedDataParallel ddp(context.group, model, options);
  SGD optimizer(ddp, torch::optim::SGDOptions(1e-5));
  uint64_t bytes = 0;
  uint64_t step_number = 0;
  const Batches batches(samples, in_order(samples, samples / microbatch_count, 3));
  for (const auto& batch : batches) {
    bool is_first = true;
    ++step_number;
    const Step step =
        one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
          if (is_first && is_met) {
            context.meet(text(static_cast<int64_t>(samples)) + "-" +
                         text(static_cast<int64_t>(step_number)));
          }
          is_first = false;
          const auto target = rows(context, data.targets, microbatch.indices());
          const auto output = model.forward(rows(context, data.inputs, microbatch.indices()));
          d.backward_mean(F::cross_entropy(output, target), static_cast<double>(target.numel()));
        });
    optimizer.step();
    bytes += step.timings.bytes_reduced;
  }
  print("exchanges " + text(static_cast<int64_t>(ddp.exchange_count())) + " in " +
        text(static_cast<int64_t>(batches.step_count())) + " steps of " +
        text(static_cast<int64_t>(microbatch_count)) + " microbatches");
  print("# bytes " + text(static_cast<int64_t>(bytes)));
}

void exchanges(Context& context) {
  for (const uint64_t microbatches : {1, 4, 16}) exchange(context, 64, microbatches, false);
}
void bytes_of_4(Context& context) { exchange(context, 4, 4, true); }
void bytes_of_400(Context& context) { exchange(context, 400, 4, true); }

// ------------------------------------------------------------------------------ plain LibTorch
// loop

std::shared_ptr<Mlp> plain_copy(const Mlp& model, const std::vector<int64_t>& widths) {
  auto copy = std::make_shared<Mlp>(widths);
  const torch::NoGradGuard no_grad;
  const auto from = model.parameters();
  const auto to = copy->parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  return copy;
}

void divide_gradients(const torch::nn::Module& module, double count) {
  for (auto& parameter : module.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.mutable_grad() =
        (parameter.grad().to(torch::kDouble) / count).to(parameter.scalar_type());
  }
}

bool same_bits(const torch::nn::Module& left, const torch::nn::Module& right, bool of_gradients) {
  const auto a = left.parameters();
  const auto b = right.parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    if (hash(of_gradients ? a[i].grad() : a[i]) != hash(of_gradients ? b[i].grad() : b[i]))
      return false;
  }
  return true;
}

double largest_difference(const torch::nn::Module& left, const torch::nn::Module& right) {
  double largest = 0;
  const auto a = left.parameters();
  const auto b = right.parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  }
  return largest;
}

constexpr uint64_t kNever = UINT64_MAX;

// K = 1: the same operations in the same order, so the same bits.
template <class Optimizer, class OptimizerOptions>
void one_against_plain(Context& context, const std::string& what,
                       OptimizerOptions optimizer_options, uint64_t second_loss_from) {
  const std::vector<int64_t> widths = {20, 48, 10};
  Mlp model(widths);
  const auto plain = plain_copy(model, widths);
  const ClassData data(60);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  Optimizer optimizer(model.parameters(), optimizer_options);
  Optimizer plain_optimizer(plain->parameters(), optimizer_options);
  const auto sum_of_losses = [&](Mlp& module, const std::vector<size_t>& indices) {
    return F::cross_entropy(module.forward(rows(context, data.inputs, indices)),
                            rows(context, data.targets, indices),
                            F::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  const auto second_loss = [&](Mlp& module, const std::vector<size_t>& indices) {
    return module.forward(rows(context, data.inputs, indices)).square().mean();
  };
  bool gradients_are_equal = true;
  bool losses_are_equal = true;
  const Batches batches(60, {.global_batch = 30, .microbatch = 30, .epochs = 3, .seed = 5});
  for (const auto& batch : batches) {
    const bool has_two_losses = batch.step() >= second_loss_from;
    const Step step =
        one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
          d.backward_sum(sum_of_losses(model, microbatch.indices()), 30);
          if (has_two_losses) d.backward_sum(second_loss(model, microbatch.indices()), 3);
        });
    plain_optimizer.zero_grad();
    const auto indices = batch.indices(0);
    const Tensor loss = sum_of_losses(*plain, indices);
    loss.backward();
    auto total = loss.item<double>();
    if (has_two_losses) {
      const Tensor second = second_loss(*plain, indices);
      second.backward();
      total += second.item<double>();
    }
    divide_gradients(*plain, has_two_losses ? 33 : 30);
    gradients_are_equal = gradients_are_equal && same_bits(model, *plain, true);
    losses_are_equal = losses_are_equal && step.loss == total / (has_two_losses ? 33 : 30);
    optimizer.step();
    plain_optimizer.step();
  }
  print(what + ": gradients " + text(gradients_are_equal) + " losses " + text(losses_are_equal) +
        " parameters " + text(same_bits(model, *plain, false)));
}

void against_plain_one(Context& context) {
  one_against_plain<torch::optim::SGD>(context, "sgd", torch::optim::SGDOptions(1e-5).momentum(0.9),
                                       kNever);
  one_against_plain<torch::optim::AdamW>(context, "adamw", torch::optim::AdamWOptions(1e-3),
                                         kNever);
  one_against_plain<torch::optim::Adam>(context, "adam", torch::optim::AdamOptions(1e-3), kNever);
  one_against_plain<torch::optim::SGD>(context, "two losses",
                                       torch::optim::SGDOptions(1e-12).momentum(0.9), 0);
  // A parameter that is known to fire once fires twice from the third step on.
  one_against_plain<torch::optim::SGD>(context, "late second loss",
                                       torch::optim::SGDOptions(1e-12).momentum(0.9), 2);
}

// Our fused optimizers against LibTorch's own on the same gradients.
template <class Ours, class Theirs, class OptimizerOptions>
void fused_against_stock(Context& context, const std::string& what, OptimizerOptions options) {
  const std::vector<int64_t> widths = {20, 48, 10};
  Mlp model(widths);
  const auto plain = plain_copy(model, widths);
  const ClassData data(60);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  Ours optimizer(ddp, options);
  Theirs plain_optimizer(plain->parameters(), options);
  const Batches batches(60, {.global_batch = 30, .microbatch = 10, .epochs = 10, .seed = 5});
  for (const auto& batch : batches) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      const auto target = rows(context, data.targets, microbatch.indices());
      const auto output = model.forward(rows(context, data.inputs, microbatch.indices()));
      d.backward_mean(F::cross_entropy(output, target), static_cast<double>(target.numel()));
    });
    const auto from = model.parameters();
    const auto to = plain->parameters();
    for (size_t i = 0; i < to.size(); ++i) to[i].mutable_grad() = from[i].grad().clone();
    optimizer.step();
    plain_optimizer.step();
  }
  print(what + ": apart " + bits(largest_difference(model, *plain)));
}

void against_stock(Context& context) {
  fused_against_stock<AdamW, torch::optim::AdamW>(context, "adamw",
                                                  torch::optim::AdamWOptions(1e-3));
  fused_against_stock<AdamW, torch::optim::AdamW>(
      context, "amsgrad", torch::optim::AdamWOptions(1e-3).amsgrad(true).weight_decay(0.1));
  auto sgd = torch::optim::SGDOptions(1e-5).momentum(0.9).dampening(0.1);
  fused_against_stock<SGD, torch::optim::SGD>(context, "sgd", sgd);
  fused_against_stock<SGD, torch::optim::SGD>(
      context, "nesterov",
      torch::optim::SGDOptions(1e-5).momentum(0.9).nesterov(true).weight_decay(0.1));
}

// K = 9 against a loop that adds in order. Both add the same nine leaves with at most 8 roundings
// each, so for every element |difference| <= (8 + 4) u sum|leaf| / count + u |mean|, u = 2^-24 (the
// tree is 4 deep). Printed: the largest quotient of difference and bound.
void against_plain_many(Context& context) {
  const std::vector<int64_t> widths = {20, 48, 10};
  Mlp model(widths);
  const auto plain = plain_copy(model, widths);
  const ClassData data(60);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const auto loss_of = [&](Mlp& module, const std::vector<size_t>& indices) {
    return F::cross_entropy(module.forward(rows(context, data.inputs, indices)),
                            rows(context, data.targets, indices),
                            F::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  const Batches batches(60, in_order(60, 7));
  const Batch batch = batches.batch(0);
  one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
    d.backward_sum(loss_of(model, microbatch.indices()), static_cast<double>(microbatch.size()));
  });
  std::vector<Tensor> magnitudes;
  std::vector<Tensor> sums;
  for (uint32_t m = 0; m < batch.microbatch_count(); ++m) {
    plain->zero_grad();
    loss_of(*plain, batch.indices(m)).backward();
    const auto parameters = plain->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto leaf = parameters[i].grad().clone();
      if (m == 0) {
        magnitudes.push_back(leaf.abs().to(torch::kDouble));
        sums.push_back(leaf);
      } else {
        magnitudes[i] += leaf.abs().to(torch::kDouble);
        sums[i] += leaf;
      }
    }
  }
  const double u = std::ldexp(1.0, -24);
  double worst = 0;
  bool differs = false;
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto mean = (sums[i].to(torch::kDouble) / 60).to(torch::kFloat).to(torch::kDouble);
    const auto ours = parameters[i].grad().to(torch::kDouble);
    const auto bound = 12 * u * magnitudes[i] / 60 + u * mean.abs() + 1e-45;
    worst = std::max(worst, ((ours - mean).abs() / bound).max().item<double>());
    differs = differs || !torch::equal(ours, mean);
  }
  print("worst " + bits(worst) + " differs " + text(differs));
}

// One pass over 256 samples in plain LibTorch against 8 microbatches of 32: other shapes of the
// same products. An element of a weight's gradient is a sum of 256 products; in any order of
// additions it is off by at most 255 u sum|product| from the exact value, plus what the activations
// are off by (a row of 20 and one of 48 numbers: 70 u, relative). Both sides: 2 (255 + 70) u
// sum|product| < 4e-5 sum|product|, where sum|product| is the gradient of the absolute values,
// |delta|^T |activation|.
void one_pass_of_256(Context& context) {
  const std::vector<int64_t> widths = {20, 48, 10};
  Mlp model(widths);
  const auto plain = plain_copy(model, widths);
  const auto inputs = torch::randn({256, 20});
  const auto targets = torch::randint(0, 10, {256}, torch::kInt64);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const Step step = one_step(
      ddp, in_order(256, 32), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
        const auto target = rows(context, targets, microbatch.indices());
        const auto output = model.forward(rows(context, inputs, microbatch.indices()));
        d.backward_mean(F::cross_entropy(output, target), static_cast<double>(target.numel()));
      });
  const auto hidden = torch::relu(plain->layers[0]->forward(inputs));
  const auto output = plain->layers[1]->forward(hidden);
  hidden.retain_grad();
  output.retain_grad();
  const auto loss = F::cross_entropy(output, targets);
  loss.backward();
  const torch::NoGradGuard no_grad;
  const auto last = output.grad().abs();
  const auto first = torch::matmul(last, plain->layers[1]->weight.abs()) * (hidden > 0);
  const std::vector<Tensor> magnitudes = {torch::matmul(first.t(), inputs.abs()), first.sum(0),
                                          torch::matmul(last.t(), hidden), last.sum(0)};
  double worst = 0;
  bool differs = false;
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    const auto difference = (model.parameters()[i].grad() - plain->parameters()[i].grad()).abs();
    worst = std::max(worst, (difference / (4e-5 * magnitudes[i] + 1e-30)).max().item<double>());
    differs = differs || difference.max().item<double>() > 0;
  }
  print("worst " + bits(worst) + " differs " + text(differs) + " loss apart " +
        bits(std::abs(step.loss - loss.item<double>())));
}

// ------------------------------------------------------------------------------ cases from
// practice

// Vocabulary 2, the model is a bias, logits (0, ln 3).
struct Bias : torch::nn::Module {
  Tensor bias = register_parameter("bias", torch::tensor({0.0f, std::log(3.0f)}));
  Tensor loss(const Tensor& targets) {
    return F::cross_entropy(bias.expand({targets.size(0), 2}), targets);
  }
};

// One microbatch is one document: of so many targets, all of one kind.
void documents(Context& context, const std::vector<std::pair<int64_t, int64_t>>& all) {
  Bias model;
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const Step step = one_step(
      ddp, in_order(all.size(), 1), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
        const auto [size, target] = all[microbatch.index()];
        const auto targets =
            torch::full({std::max<int64_t>(size, 3)}, size == 0 ? -100 : target, torch::kInt64);
        d.backward_mean(model.loss(targets), static_cast<double>(size));
      });
  char line[128];
  std::snprintf(line, sizeof line, "loss %.5f derivative %.6f count %g", step.loss,
                model.bias.grad()[1].item<double>(), step.count);
  print(line);
}

void uneven_documents(Context& context) { documents(context, {{10, 0}, {100, 1}}); }
void masked_document(Context& context) { documents(context, {{4, 1}, {0, 0}}); }

// One parameter w = 0, cost (w - y)^2.
void scalar(Context& context) {
  Weights model(torch::zeros({}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const auto y = torch::arange(1, 8).to(torch::kFloat);
  one_step(ddp, in_order(7, 1), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
    d.backward_mean((model.w - rows(context, y, microbatch.indices())).square().mean(), 1);
  });
  print("gradient " + bits(model.w.grad()));
}

// Windows of 4 over 10 samples: the last is divided by 2.
void short_window(Context& context) {
  Weights model(torch::zeros({}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  SGD optimizer(ddp, torch::optim::SGDOptions(0.25));
  const auto y = torch::arange(1, 11).to(torch::kFloat);
  const Batches batches(10, {.global_batch = 4, .microbatch = 1, .shuffle = false});
  std::string line;
  for (const auto& batch : batches) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      d.backward_mean((model.w - rows(context, y, microbatch.indices())).square().mean(), 1);
    });
    optimizer.step();
    line += " " + std::to_string(model.w.item<double>());
  }
  print("w" + line);
}

// Rows 0..49 have weight 1, row 99 too, the rest 0.
void row_weights(Context& context) {
  Weights model(torch::zeros({}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const auto weights = torch::cat({torch::ones({50}), torch::zeros({49}), torch::ones({1})});
  const Step step = one_step(
      ddp, in_order(100, 10), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
        const auto weight = rows(context, weights, microbatch.indices());
        d.backward_sum(((model.w - 1) * weight).sum(), weight.sum().item<double>());
      });
  print("count " + std::to_string(step.count) + " gradient " + bits(model.w.grad()));
}

// 179 + 205 + 9 of 522 rows are right; losses are 0, 1, 2, ... in turn.
void evaluations(Context& context) {
  Weights model(torch::zeros({}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const auto is_right = [](size_t row) {
    return row < 256 ? row < 179 : row < 512 ? row < 256 + 205 : row < 512 + 9;
  };
  for (const uint64_t microbatch : {522, 256, 100, 7}) {
    const auto found = ddp.evaluate(522, microbatch, [&](const std::vector<size_t>& indices) {
      EvaluationPart part;
      part.count = static_cast<double>(indices.size());
      for (const size_t row : indices) part.metrics[0] += is_right(row);
      return part;
    });
    print("right " + std::to_string(found.metrics[0] / found.count));
  }
  const auto mean = ddp.evaluate(10, 1, [](const std::vector<size_t>& indices) {
    return EvaluationPart{.loss = static_cast<double>(indices[0]), .count = 1};
  });
  print("mean " + std::to_string(mean.loss));
}

// Half precision sums are kept in float: 4 times 40000 overflows float16, 6e-8 is its smallest
// number.
void half_range(Context& context) {
  for (const float value : {40000.0f, 6e-8f}) {
    Weights model(torch::zeros({2}, torch::kHalf));
    DistributedDataParallel ddp(context.group, model, context.ddp_options());
    one_step(ddp, in_order(4, 1), [&](DistributedDataParallel& d, const Microbatch&) {
      d.backward_sum((model.w * torch::full({2}, value).to(torch::kHalf)).sum(), 1);
    });
    print("mean " + bits(model.w.grad()));
  }
}

struct Two : torch::nn::Module {
  Tensor a = register_parameter("a", torch::zeros({}));
  Tensor b = register_parameter("b", torch::zeros({}));
};

// Gradients 3 and 4, clipped to 1: by the norm of both, 5.
void clip(Context& context) {
  for (const bool is_fused : {true, false}) {
    Two model;
    DistributedDataParallel ddp(context.group, model, context.ddp_options());
    SGD optimizer(ddp, torch::optim::SGDOptions(1));
    if (is_fused) optimizer.clip_norm(1);
    const Step step =
        one_step(ddp, in_order(4, 1), [&](DistributedDataParallel& d, const Microbatch&) {
          d.backward_mean(3 * model.a + 4 * model.b, 1);
        });
    if (!is_fused) torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    char line[128];
    std::snprintf(line, sizeof line, "norm %.6f update %.4f %.4f", step.gradient_norm,
                  -model.a.item<double>(), -model.b.item<double>());
    print(line);
  }
}

// The same row in two microbatches and twice in one of them: four masks, all different.
void masks(Context& context) {
  Weights model(torch::ones({64}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  for (const auto& batch : Batches(4, in_order(4, 2, 2))) {
    for (const auto& microbatch : ddp.microbatches(batch)) {
      const auto output = torch::dropout(model.w.expand({2, 64}), 0.5, true);
      if (!microbatch.is_audit()) {
        for (int64_t row = 0; row < 2; ++row) {
          print("# mask " + text(static_cast<int64_t>(batch.step())) + " " +
                text(microbatch.index()) + " " + text(row) + " " + hash(output[row]));
        }
      }
      ddp.backward_mean(output.mean(), 2);
    }
    ddp.average();
  }
}

// ------------------------------------------------------------------------------ what the rules say

// Absent is not zero: -0 in one microbatch and nothing in the other is -0.
void absent(Context& context) {
  Weights model(torch::zeros({2}));
  auto other = model.register_parameter("other", torch::zeros({2}));
  auto never = model.register_parameter("never", torch::zeros({2}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  AdamW optimizer(ddp, torch::optim::AdamWOptions(1e-3));
  const auto minus_zero = torch::full({2}, -0.0f);
  for (const auto& batch : Batches(4, in_order(4, 1, 2))) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      const bool is_second = microbatch.index() == 1;
      d.backward_sum(is_second ? (model.w * minus_zero).sum() : other.sum(), 1);
    });
    print("gradient " + bits(model.w.grad()) + " never " + hash(never.grad()));
    optimizer.step();
  }
  const auto step_of = [&](const Tensor& parameter) -> int64_t {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return 0;
    return static_cast<torch::optim::AdamWParamState&>(*found->second).step();
  };
  print("steps " + text(step_of(model.w)) + " " + text(step_of(other)) + " " +
        text(step_of(never)));
  print("never " + bits(never));
}

// (1e16 + 1) - 1e16 + 1 = 1 in the order of microbatches; in others 0 or 2.
void metric_order(Context& context) {
  Weights model(torch::zeros({2}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  const double values[] = {1e16, 1, -1e16, 1};
  const Step step =
      one_step(ddp, in_order(4, 1), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
        microbatch.record(3, values[microbatch.index()]);
        d.backward_sum(model.w.sum() + values[microbatch.index()], 1);
      });
  print("metric " + bits(step.metrics[3]));
}

// A gradient and its norm; the test computes the norm again by the rule's words.
void norm(Context& context, torch::Dtype dtype) {
  struct Pair : torch::nn::Module {
    explicit Pair(torch::Dtype type)
        : first(register_parameter("first", torch::zeros({5003}, type))),
          last(register_parameter("last", torch::zeros({99}, type))) {}
    Tensor first, last;
  };
  for (int repetition = 0; repetition < 5; ++repetition) {
    Pair model(dtype);
    const auto gradients = torch::randn({5102}, torch::kDouble).exp().to(dtype);
    DistributedDataParallel ddp(context.group, model, context.ddp_options());
    const Step step =
        one_step(ddp, in_order(4, 1), [&](DistributedDataParallel& d, const Microbatch&) {
          d.backward_sum((torch::cat({model.first, model.last}) * gradients).sum(), 1);
        });
    print("norm " + bits(step.gradient_norm));
    print("last " + bits(model.last.grad()));
    // In lines that the launcher does not cut.
    for (int64_t at = 0; at < 5003; at += 1000) {
      print("first " + bits(model.first.grad().slice(0, at, at + 1000)));
    }
  }
}

void norm_of_floats(Context& context) { norm(context, torch::kFloat); }
void norm_of_doubles(Context& context) { norm(context, torch::kDouble); }

// Where tensors start, and what MKL is told (rule 10).
void alignment(Context& context) {
  Mlp model({20, 47, 33, 11});
  const ClassData data(48);
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  AdamW optimizer(ddp);
  one_step(ddp, in_order(48, 6), [&](DistributedDataParallel& d, const Microbatch& microbatch) {
    const auto target = rows(context, data.targets, microbatch.indices());
    const auto output = model.forward(rows(context, data.inputs, microbatch.indices()));
    d.backward_mean(F::cross_entropy(output, target), static_cast<double>(target.numel()));
  });
  const auto is_off = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64 != 0;
  };
  int64_t parameters = 0;
  int64_t gradients = 0;
  for (const auto& parameter : model.parameters()) {
    parameters += is_off(parameter);
    gradients += is_off(parameter.grad());
  }
  const char* cbwr = std::getenv("MKL_CBWR");
  print("MKL_CBWR " + std::string(cbwr == nullptr ? "none" : cbwr) + " off: parameters " +
        text(parameters) + " gradients " + text(gradients));
}

// LibTorch's hidden state as Group::from_environment leaves it (rule 11), and what it does.
void hidden_state(Context&) {
  const auto& global = at::globalContext();
  print("deterministic " + text(global.deterministicAlgorithms()) + " warn only " +
        text(global.deterministicAlgorithmsWarnOnly()) + " fill " +
        text(global.deterministicFillUninitializedMemory()) + " profiling " +
        text(torch::jit::getProfilingMode()));
  try {
    torch::zeros({3}).put_(torch::tensor({0, 0}), torch::ones({2}));
    print("an operation without a fixed order is done");
  } catch (const c10::Error&) {
    print("an operation without a fixed order is refused");
  }
  print("filled " + text(torch::empty({1000}).isnan().all().item<bool>()));
  const auto script = torch::jit::compile(R"(
def loss(x, w):
    h = torch.layer_norm(torch.matmul(x, w), [48])
    return torch.sum(torch.sigmoid(h) * torch.tanh(h) / (1.0 + torch.exp(-h)))
)");
  const auto x = torch::randn({33, 31});
  auto w = torch::randn({31, 48}).requires_grad_(true);
  for (int call = 0; call < 4; ++call) {
    w.mutable_grad() = Tensor();
    script->run_method("loss", x, w).toTensor().backward();
    print("call " + hash(w.grad()));
  }
}

// Cancelling leaves in float: the order of additions decides what is left.
void tree(Context& context) {
  const std::vector<float> values = {1e8f, 1, -1e8f, 3, 0.1f, -1e8f, 7, 1e8f, 5, 0.3f, -0.7f};
  for (size_t count = 1; count <= values.size(); ++count) {
    Weights model(torch::zeros({1}));
    DistributedDataParallel ddp(context.group, model, context.ddp_options());
    one_step(ddp, in_order(count, 1),
             [&](DistributedDataParallel& d, const Microbatch& microbatch) {
               d.backward_sum((model.w * values[microbatch.index()]).sum(),
                              microbatch.index() == 0 ? 1 : 0.0 + 1e-300);
             });
    print("sum " + bits(model.w.grad()));
  }
}

struct Moving : torch::nn::Module {
  Tensor w = register_parameter("w", torch::zeros({1}));
  Tensor seen = register_buffer("seen", torch::full({1}, 8.0f));
  Tensor still = register_buffer("still", torch::full({1}, std::nanf("")));
  Tensor counter = register_buffer("counter", torch::tensor(int64_t{41}));
};

// Every microbatch starts from the step's buffers; the mean of what they became is the next step's.
void buffer_mean(Context& context) {
  Moving model;
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  for (const auto& batch : Batches(8, in_order(8, 2, 3))) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      {
        const torch::NoGradGuard no_grad;
        model.seen.mul_(0.5).add_(static_cast<double>(microbatch.index()));
        if (microbatch.index() != 2) model.counter.add_(1);
      }
      // The last one ends without a backward: its buffers count for nothing.
      if (microbatch.index() != 3) d.backward_sum(model.w.sum(), 2);
    });
    print("seen " + std::to_string(model.seen.item<double>()) + " counter " +
          text(model.counter.item<int64_t>()) + " still " + hash(model.still));
  }
}

// Which samples, in which microbatch of which step, over three epochs of 23.
void samples(Context& context) {
  Weights model(torch::zeros({1}));
  DistributedDataParallel ddp(context.group, model, context.ddp_options());
  for (const auto& batch :
       Batches(23, {.global_batch = 8, .microbatch = 3, .epochs = 3, .seed = 9})) {
    one_step(ddp, batch, [&](DistributedDataParallel& d, const Microbatch& microbatch) {
      if (!microbatch.is_audit()) {
        for (const size_t index : microbatch.indices()) {
          print("# sample " + text(static_cast<int64_t>(batch.epoch())) + " " +
                text(static_cast<int64_t>(index)) + " " + text(static_cast<int64_t>(batch.step())) +
                " " + text(microbatch.index()));
        }
      }
      d.backward_sum(model.w.sum(), static_cast<double>(microbatch.size()));
    });
  }
}

}  // namespace

std::map<std::string, Scenario> number_scenarios() {
  return {{"average_of_two", average_of_two},
          {"shares_of_64", shares_of_64},
          {"shares_of_1024", shares_of_1024},
          {"four_by_eight", four_by_eight},
          {"averaging_on", averaging_on},
          {"averaging_off", averaging_off},
          {"exchanges", exchanges},
          {"bytes_of_4", bytes_of_4},
          {"bytes_of_400", bytes_of_400},
          {"against_plain_one", against_plain_one},
          {"against_stock", against_stock},
          {"against_plain_many", against_plain_many},
          {"one_pass_of_256", one_pass_of_256},
          {"uneven_documents", uneven_documents},
          {"masked_document", masked_document},
          {"scalar", scalar},
          {"short_window", short_window},
          {"row_weights", row_weights},
          {"evaluations", evaluations},
          {"half_range", half_range},
          {"clip", clip},
          {"masks", masks},
          {"absent", absent},
          {"metric_order", metric_order},
          {"norm_of_floats", norm_of_floats},
          {"norm_of_doubles", norm_of_doubles},
          {"alignment", alignment},
          {"hidden_state", hidden_state},
          {"tree", tree},
          {"buffer_mean", buffer_mean},
          {"samples", samples}};
}

}  // namespace lockstep::probe
