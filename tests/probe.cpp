#include "tests/probe.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <thread>

namespace lockstep::probe {

namespace {

class Fnv {
 public:
  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * 1099511628211u;
  }
  std::string text() const {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(value_));
    return buffer;
  }

 private:
  uint64_t value_ = 14695981039346656037u;
};

std::string joined_hash(const std::vector<std::string>& parts) {
  Fnv fnv;
  for (const auto& part : parts) fnv.add(part.data(), part.size());
  return fnv.text();
}

}  // namespace

DistributedDataParallelOptions Context::ddp_options() const {
  DistributedDataParallelOptions made;
  made.shuffle_claims = options.shuffle_claims;
  made.bucket_bytes = options.bucket_bytes;
  made.audit_first_step = options.audit;
  return made;
}

void Context::slow_down() const {
  if (rank() == options.slow_rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(options.slow_ms));
  }
}

void Context::meet(const std::string& place) const {
  const std::filesystem::path folder = options.variant;
  std::ofstream(folder / (place + "." + std::to_string(rank())));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (uint32_t other = 0; other < group.size(); ++other) {
    while (!std::filesystem::exists(folder / (place + "." + std::to_string(other)))) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("rank " + std::to_string(other) + " did not come to " + place);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

std::string bits(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a", value);
  return buffer;
}

std::string bits(const torch::Tensor& tensor) {
  const auto values = tensor.detach().to(torch::kDouble).contiguous().flatten();
  std::string text;
  for (int64_t i = 0; i < values.numel(); ++i) {
    text += (i == 0 ? "" : " ") + bits(values[i].item<double>());
  }
  return text;
}

std::string hash(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  const auto dense = (tensor.layout() == torch::kSparse ? tensor.to_dense() : tensor).detach();
  const auto values = dense.contiguous();
  Fnv fnv;
  const int type = static_cast<int>(values.scalar_type());
  fnv.add(&type, sizeof type);
  fnv.add(values.sizes().data(), values.sizes().size() * sizeof(int64_t));
  fnv.add(values.data_ptr(), values.nbytes());
  return fnv.text();
}

std::string gradient_hash(const torch::nn::Module& module) {
  std::vector<std::string> parts;
  for (const auto& parameter : module.parameters()) parts.push_back(hash(parameter.grad()));
  return joined_hash(parts);
}

std::string buffer_hash(const torch::nn::Module& module) {
  std::vector<std::string> parts;
  for (const auto& buffer : module.buffers()) parts.push_back(hash(buffer));
  return joined_hash(parts);
}

torch::Tensor shifted(const torch::Tensor& tensor, size_t shift_bytes) {
  const auto values = tensor.contiguous();
  const auto bytes = torch::empty({static_cast<int64_t>(values.nbytes() + 192)}, torch::kUInt8);
  auto address = reinterpret_cast<uintptr_t>(bytes.data_ptr());
  address = (address + 63) / 64 * 64 + shift_bytes;
  auto made = torch::from_blob(
      reinterpret_cast<void*>(address), values.sizes(), [bytes](void*) {}, values.options());
  made.copy_(values);
  return made;
}

torch::Tensor rows(const Context& context, const torch::Tensor& data,
                   const std::vector<size_t>& indices) {
  const std::vector<int64_t> wanted(indices.begin(), indices.end());
  const auto part = data.index_select(0, torch::tensor(wanted, torch::kInt64));
  if (context.options.shift_bytes == 0 || !part.is_floating_point()) return part;
  return shifted(part, context.options.shift_bytes);
}

torch::Tensor cancelling_rows(int64_t row_count, std::vector<int64_t> shape) {
  shape.insert(shape.begin(), row_count);
  const auto values = torch::randn(shape);
  const float scales[] = {1e4f, -1e4f, 1};
  for (int64_t row = 0; row < row_count; ++row) values[row].mul_(scales[row % 3]);
  return values;
}

void print_step(Context& context, const Step& step, const std::string& gradients,
                DistributedDataParallel& ddp, const torch::nn::Module& model) {
  std::string text = context.name + " step " + std::to_string(step.number) + " loss " +
                     bits(step.loss) + " count " + bits(step.count) + " norm " +
                     bits(step.gradient_norm) + " metrics";
  for (const double metric : step.metrics) text += " " + bits(metric);
  // A number drawn here must not depend on what this replica happened to compute.
  const auto drawn = torch::rand({1}).item<float>();
  print(text + " gradients " + gradients + " parameters " + ddp.parameter_hash() + " buffers " +
        buffer_hash(model) + " drawn " + bits(drawn));
}

void train(Context& context, const Plan& plan) {
  DistributedDataParallel ddp(context.group, *plan.model, context.ddp_options());
  const auto optimizer = plan.optimizer
                             ? plan.optimizer(ddp)
                             : std::make_unique<AdamW>(ddp, torch::optim::AdamWOptions(3e-3));
  const Batches batches(plan.sample_count, plan.batches);
  for (const auto& batch : batches) {
    if (plan.before_step) plan.before_step(batch.step());
    for (const auto& microbatch : ddp.microbatches(batch)) {
      context.slow_down();
      plan.compute(ddp, microbatch);
    }
    const Step step = ddp.average();
    const auto gradients = gradient_hash(*plan.model);
    if (plan.after_average) plan.after_average(ddp, *optimizer, step);
    optimizer->step();
    print_step(context, step, gradients, ddp, *plan.model);
    if (plan.after_update) plan.after_update(ddp);
  }
  for (const auto& item : plan.model->named_parameters()) {
    if (!torch::isfinite(item.value()).all().item<bool>()) {
      throw std::runtime_error(context.name + ": " + item.key() + " is not finite");
    }
  }
  print(context.name + " state " + ddp.state_hash(*optimizer) + " drift " + bits(ddp.drift()));
}

Mlp::Mlp(const std::vector<int64_t>& widths, double dropout_rate) {
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layers.push_back(
        register_module("layer" + std::to_string(i), torch::nn::Linear(widths[i], widths[i + 1])));
  }
  dropout = register_module("dropout", torch::nn::Dropout(dropout_rate));
}

torch::Tensor Mlp::forward(torch::Tensor input) {
  for (size_t i = 0; i < layers.size(); ++i) {
    input = layers[i]->forward(input);
    if (i + 1 < layers.size()) input = dropout->forward(torch::relu(input));
  }
  return input;
}

ClassData::ClassData(int64_t count)
    : inputs(cancelling_rows(count, {20})),
      targets(torch::randint(0, 10, {count}, torch::kInt64)) {}

namespace {

int run(int count, char** arguments) {
  std::vector<std::string> names;
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    const auto value = [&] { return std::string(i + 1 < count ? arguments[++i] : "0"); };
    if (word == "--shuffle-claims") {
      options.shuffle_claims = std::stoull(value());
    } else if (word == "--bucket-bytes") {
      options.bucket_bytes = std::stoull(value());
    } else if (word == "--shift") {
      options.shift_bytes = std::stoull(value());
    } else if (word == "--slow") {  // RANK MS
      options.slow_rank = static_cast<uint32_t>(std::stoul(value()));
      options.slow_ms = static_cast<uint32_t>(std::stoul(value()));
    } else if (word == "--no-audit") {
      options.audit = false;
    } else if (word == "--variant") {
      options.variant = value();
    } else {
      names.push_back(word);
    }
  }
  std::map<std::string, Scenario> scenarios = exactness_scenarios();
  scenarios.merge(number_scenarios());
  scenarios.merge(refusal_scenarios());
  Context context{Group::from_environment(), options, ""};
  for (const auto& name : names) {
    const auto found = scenarios.find(name);
    if (found == scenarios.end()) throw std::runtime_error("there is no scenario " + name);
    context.name = name;
    torch::manual_seed(7);
    found->second(context);
  }
  print("done");
  return 0;
}

}  // namespace

}  // namespace lockstep::probe

int main(int count, char** arguments) {
  // "--uncaught": exceptions leave main as they do in a program that never thought of them.
  if (std::strcmp(arguments[count - 1], "--uncaught") == 0) {
    return lockstep::probe::run(count - 1, arguments);
  }
  try {
    return lockstep::probe::run(count, arguments);
  } catch (const lockstep::Error& error) {
    std::cerr << "lockstep error " << static_cast<int>(error.code()) << ": " << error.what()
              << std::endl;
    return 3;
  } catch (const std::exception& error) {
    std::cerr << "other error: " << error.what() << std::endl;
    return 4;
  }
}
