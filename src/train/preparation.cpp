#include "src/train/preparation.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <random>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "lockstep/batches.h"
#include "lockstep/error.h"
#include "src/base/counted.h"
#include "src/base/file.h"
#include "src/exchange/control.h"
#include "src/train/recipe.h"
#include "src/train/training_data.h"

namespace lockstep::train {
namespace {

using base::counted;
using base::format_bytes;
using base::quote_path;

constexpr uint64_t kProgramBytes = uint64_t{150} << 20;  // private memory of LibTorch once it runs

uint64_t saturate(double bytes) {
  return bytes >= 9e18 ? uint64_t{1} << 63 : static_cast<uint64_t>(bytes);
}

// What autograd keeps of one microbatch. GPT: about 16 numbers of the width per token and layer
// (inputs of norms, linear layers, GELU, attention), and the logits with their softmax and
// gradient.
double gpt_activation_count(const GptSizes& gpt) {
  return gpt.context * (16.0 * gpt.width * gpt.layers + 3.0 * gpt.vocabulary);
}

// Of one row: the inputs, each hidden layer before and after its ReLU, the outputs as above.
double mlp_activation_count(const MlpSizes& mlp) {
  return mlp.inputs + 2.0 * mlp.width * (mlp.layers - 1) + 3.0 * mlp.outputs;
}

uint64_t activation_bytes(const TrainOptions& options) {
  const auto samples = static_cast<double>(std::min(options.microbatch, options.global_batch));
  const double per_sample = options.model == ModelKind::kGpt ? gpt_activation_count(options.gpt)
                                                             : mlp_activation_count(options.mlp);
  return saturate(4 * samples * per_sample);
}

// As many as leave none without a core, without work, or without memory.
void choose_replicas(TrainRequest& request, const base::CpuBudget& cpu,
                     const base::MemoryBudget& memory, uint64_t data_bytes) {
  TrainOptions& options = request.options;
  const uint64_t by_cores = std::max<uint64_t>(1, cpu.usable_cores / options.threads);
  // The dials multiply: every replica has its own microbatches then.
  const uint64_t by_work = options.per_replica ? by_cores : microbatch_count(options);
  const MemoryNeed need = memory_need(options, 1, data_bytes);
  const uint64_t left = memory.available_bytes - std::min(memory.available_bytes, need.shared);
  const uint64_t by_memory =
      std::max<uint64_t>(1, left / std::max<uint64_t>(1, need.per_replica()));
  uint64_t count = std::min<uint64_t>({by_cores, by_work, by_memory, exchange::kMaxReplicas});
  if (count == by_cores) {
    options.replica_reason = options.threads == 1
                                 ? cpu.reason
                                 : fmt::format("{}; {} threads each", cpu.reason, options.threads);
  } else if (count == by_work) {
    options.replica_reason = counted(by_work, "microbatch", "microbatches") + " in a step";
  } else {
    options.replica_reason =
        fmt::format("each needs about {}; {}", format_bytes(need.per_replica()), memory.reason);
  }
  options.replicas = static_cast<uint32_t>(count);
  request.has_replicas = true;
}

void check_memory(const TrainOptions& options, const MemoryNeed& need,
                  const base::MemoryBudget& memory, std::vector<std::string>& warnings) {
  const auto times = [&](uint64_t bytes) {
    uint64_t product = 0;
    return __builtin_mul_overflow(bytes, options.replicas, &product) ? UINT64_MAX : product;
  };
  const uint64_t certain = times(need.state_per_replica);
  if (certain > memory.available_bytes) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} x {} for parameters, gradients and optimizer state of {} parameters "
                    "do not fit: {}. Take a smaller model or fewer replicas.",
                    counted(options.replicas, "replica"), format_bytes(need.state_per_replica),
                    need.parameters, memory.reason));
  }
  const uint64_t estimate = times(need.per_replica());
  if (estimate > memory.available_bytes) {
    warnings.push_back(fmt::format(
        "{} may need about {} of memory in all; {}. A smaller --microbatch or fewer replicas need "
        "less",
        counted(options.replicas, "replica"), format_bytes(estimate), memory.reason));
  }
}

void warn_about_cores(const TrainOptions& options, const base::CpuBudget& cpu,
                      std::vector<std::string>& warnings) {
  const uint64_t threads = uint64_t{options.replicas} * options.threads;
  if (threads <= cpu.usable_cores) return;
  warnings.push_back(
      fmt::format("{} x {} = {} threads on {} ({}): they take turns, which costs time and no bits",
                  counted(options.replicas, "replica"), counted(options.threads, "thread"), threads,
                  counted(cpu.usable_cores, "core"), cpu.reason));
}

void warn_about_length(const PreparedTraining& training, uint64_t samples,
                       std::vector<std::string>& warnings) {
  const TrainOptions& options = training.options;
  if (options.global_batch > samples) {
    warnings.push_back(
        fmt::format("the global batch of {} is larger than the data: every step takes "
                    "all {}, none twice",
                    options.global_batch, counted(samples, "sample")));
  }
  if (options.warmup >= training.step_count && options.warmup > 0) {
    warnings.push_back(fmt::format("--warmup {} does not end within the {}", options.warmup,
                                   counted(training.step_count, "step")));
  }
}

void warn_about_drills(const TrainOptions& options, uint64_t step_count,
                       std::vector<std::string>& warnings) {
  std::vector<bool> killed(options.replicas, false);  // [rank]
  for (const std::string& drill : options.kills) {
    const size_t at = drill.find('@');
    killed[std::stoul(drill.substr(0, at))] = true;
    if (std::stoull(drill.substr(at + 1)) > step_count) {
      warnings.push_back(fmt::format("--kill {} is after the last step, {}: nothing will happen",
                                     drill, step_count));
    }
  }
  if (!options.kills.empty() && std::find(killed.begin(), killed.end(), false) == killed.end()) {
    warnings.emplace_back("the drills kill every replica: the run will fail when the last is gone");
  }
}

uint64_t choose_seed() {
  std::random_device device;
  return device();  // 32 bits: short enough to be typed
}

bool try_make_folder(const std::string& path) {
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(path, error);
  if (error) {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot make the out folder {}: {}. Choose another with --out.",
                            quote_path(path), error.message()));
  }
  return is_new;
}

void check_writable(const std::string& folder) {
  const std::string name = fmt::format("{}/.lockstep-write-test-{}", folder, ::getpid());
  try {
    base::AppendFile(name, base::AppendFile::Start::kEmpty).append_line("x");
  } catch (const Error& error) {
    ::unlink(name.c_str());
    throw Error(ErrorCode::kInput, fmt::format("the out folder {} cannot be written to: {}",
                                               quote_path(folder), error.what()));
  }
  ::unlink(name.c_str());
}

exchange::Descriptor lock_folder(const std::string& folder) {
  exchange::Descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("another run is writing to the out folder {} now. Give another --out.",
                      quote_path(folder)));
    }
    lock.reset();  // this file system has no locks
  }
  return lock;
}

}  // namespace

MemoryNeed memory_need(const TrainOptions& options, uint32_t replicas, uint64_t data_bytes) {
  MemoryNeed need;
  need.parameters = parameter_count(options);
  need.state_per_replica = 16 * need.parameters;
  // Of K/N microbatches in order, one partial a level of the tree waits for its sibling.
  const uint64_t run = (microbatch_count(options) - 1) / replicas + 1;
  need.slots_per_replica = 4 * need.parameters * (static_cast<uint64_t>(std::bit_width(run)) + 1);
  need.activations = activation_bytes(options);
  need.program_per_replica = kProgramBytes;
  need.data_per_replica = data_bytes;
  need.shared = 4 * need.parameters;
  return need;
}

PreparedTraining prepare_training(TrainRequest request, const std::string& root) {
  PreparedTraining training;
  const TrainingData data = load_training_data(request);
  training.cpu = base::cpu_budget(root);
  const base::MemoryBudget memory = base::memory_budget(root);
  const uint64_t data_bytes = memory_bytes(data);
  if (!request.has_replicas) choose_replicas(request, training.cpu, memory, data_bytes);
  settle_batch(request);

  TrainOptions& options = request.options;
  if (!request.has_seed) {
    options.seed = choose_seed();
    options.seed_was_chosen = true;
  }
  const uint64_t samples = sample_count(data);
  const Batches batches(samples, {.global_batch = options.global_batch,
                                  .microbatch = options.microbatch,
                                  .epochs = options.epochs,
                                  .steps = options.steps,
                                  .seed = options.seed});
  training.step_count = batches.step_count();
  training.steps_per_epoch = batches.steps_per_epoch();
  if (!request.has_length) training.length_note = "the default; --steps or --epochs say otherwise";
  training.memory = memory_need(options, options.replicas, data_bytes);
  check_memory(options, training.memory, memory, training.warnings);
  training.options = options;
  warn_about_cores(options, training.cpu, training.warnings);
  warn_about_length(training, samples, training.warnings);
  warn_about_drills(options, training.step_count, training.warnings);
  training.data_summary = summary(data);
  training.recipe = recipe_json(options, data);
  return training;
}

OutFolder prepare_out_folder(const std::string& out, std::string_view what) {
  if (out.empty()) {
    const std::string name =
        fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", what, fmt::localtime(std::time(nullptr)));
    std::string path = name;
    for (int i = 2; !try_make_folder(path); ++i) path = fmt::format("{}-{}", name, i);
    check_writable(path);
    return {path, lock_folder(path)};
  }
  try_make_folder(out);
  check_writable(out);
  exchange::Descriptor lock = lock_folder(out);
  const auto metrics = base::file_status(out + "/metrics.jsonl");
  if (metrics && metrics->size_bytes > 0) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the out folder {} holds a run already (metrics.jsonl). Give another "
                            "--out, or remove that run; it cannot be resumed yet.",
                            quote_path(out)));
  }
  return {out, std::move(lock)};
}

}  // namespace lockstep::train
