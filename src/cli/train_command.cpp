#include <algorithm>
#include <cctype>
#include <cstring>
#include <sstream>

#include <fmt/format.h>

#include "src/base/counted.h"
#include "src/base/file.h"
#include "src/base/system.h"
#include "src/cli/command.h"
#include "src/cli/console.h"
#include "src/cli/previous_run.h"
#include "src/cli/training_run.h"
#include "src/report/product_line.h"
#include "src/report/progress.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

using train::TrainOptions;

report::LearningRateScale scale_of(train::LearningRateScaling scaling) {
  switch (scaling) {
    case train::LearningRateScaling::kLinear: return report::LearningRateScale::kLinear;
    case train::LearningRateScaling::kSqrt: return report::LearningRateScale::kSqrt;
    case train::LearningRateScaling::kNone: break;
  }
  return report::LearningRateScale::kNone;
}

report::Product product_of(const train::PreparedTraining& training) {
  const TrainOptions& options = training.options;
  report::Product product;
  product.global_batch = options.global_batch;
  product.microbatch = options.microbatch;
  product.replicas = options.replicas;
  product.per_replica = options.per_replica;
  product.accumulation = options.accumulate;
  product.updates_per_epoch = training.steps_per_epoch;
  product.learning_rate = options.learning_rate;
  product.scale = scale_of(options.learning_rate_scaling);
  product.base_learning_rate = options.base_learning_rate;
  product.base_batch = options.base_batch;
  return product;
}

std::string model_sizes(const TrainOptions& options) {
  if (options.model == train::ModelKind::kGpt) {
    const train::GptSizes& gpt = options.gpt;
    return fmt::format("{}, {}, width {}, context {}, vocabulary {}",
                       base::counted(gpt.layers, "layer"), base::counted(gpt.heads, "head"),
                       gpt.width, gpt.context, gpt.vocabulary);
  }
  const train::MlpSizes& mlp = options.mlp;
  std::string sizes = std::to_string(mlp.inputs);
  for (uint32_t layer = 1; layer < std::min(mlp.layers, 4u); ++layer) {
    sizes += fmt::format(" - {}", mlp.width);
  }
  if (mlp.layers > 4) sizes += " - ...";
  return fmt::format("{}, {} - {}, {}", base::counted(mlp.layers, "linear layer"), sizes,
                     mlp.outputs, train::word_of(mlp.task));
}

std::string model_line(const TrainOptions& options) {
  const bool is_gpt = options.model == train::ModelKind::kGpt;
  const double dropout = is_gpt ? options.gpt.dropout : options.mlp.dropout;
  return fmt::format("model        {}, {} parameters: {}{}; {}, {}", train::word_of(options.model),
                     report::format_rate(static_cast<double>(train::parameter_count(options))),
                     model_sizes(options), dropout > 0 ? fmt::format(", dropout {}", dropout) : "",
                     train::word_of(options.precision), train::word_of(options.optimizer));
}

// In quotes only where it holds something that would disturb the line.
std::string shown(const std::string& path) {
  const std::string quoted = base::quote_path(path);
  return quoted.size() == path.size() + 2 ? path : quoted;
}

void print_head(const train::PreparedTraining& training, const std::string& pinning_note,
                Console& console) {
  const TrainOptions& options = training.options;
  const report::Product product = product_of(training);
  console.print(report::product_line(product));
  if (const auto change = change_since_previous_run(options.out, training.recipe, product)) {
    console.print("             " + *change);
  }
  console.print(model_line(options));
  console.print("data         " + training.data_summary);
  console.print(fmt::format("replicas     {} ({}), threads {}, about {} each{}", options.replicas,
                            options.replica_reason, options.threads,
                            base::format_bytes(training.memory.per_replica()),
                            pinning_note.empty() ? "" : "; " + pinning_note));
  console.print(fmt::format("steps        {}{}; seed {}{}", training.step_count,
                            training.length_note.empty() ? "" : " (" + training.length_note + ")",
                            options.seed, options.seed_was_chosen ? " (chosen now)" : ""));
  console.print("results      " + shown(options.out));
  if (!options.averaging) {
    console.print(
        "averaging    off: every replica applies its own mean, and the copies separate. The "
        "figures are rank 0's.");
  }
  for (const std::string& warning : training.warnings) {
    console.warn(fmt::format("warning: {}.", warning));
  }
}

std::string without_tabs(const std::string& line) {
  std::string text;
  for (const char c : line) {
    text += c == '\t' ? std::string(8 - text.size() % 8, ' ') : std::string(1, c);
  }
  return text;
}

void print_sample(const std::string& out, Console& console) {
  const std::string path = out + "/sample.txt";
  if (!base::file_status(path)) {
    console.print("sample       none: the replica that was to write it has died");
    return;
  }
  console.print("sample       " + shown(path) + ":");
  std::istringstream lines(base::read_file(path, 16 << 20));
  for (std::string line; std::getline(lines, line);) {
    // No escape sequences from the data, and nothing that is no text.
    const std::string quoted = base::quote_path(without_tabs(line));
    console.print("  | " + quoted.substr(1, quoted.size() - 2));
  }
}

// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 || std::strchr("/._-+=:,@%", c) != nullptr;
  });
  if (is_plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void print_deaths(const TrainingOutcome& outcome, Console& console) {
  for (const launch::Death& death : outcome.launch.deaths) {
    console.print(fmt::format("death        rank {} {}; the others went on in the same step",
                              death.rank, death.description));
  }
}

void print_success(const train::PreparedTraining& training, const TrainingOutcome& outcome,
                   Console& console) {
  const TrainOptions& options = training.options;
  const report::StepMetrics& last = outcome.last;
  const auto figures = [](double loss, const std::optional<double>& accuracy) {
    const std::string text = fmt::format("{:.4f}", loss);
    return accuracy ? fmt::format("{} (accuracy {:.2f} %)", text, 100 * *accuracy) : text;
  };
  std::string loss = "loss " + figures(last.loss, last.accuracy);
  if (last.validation_loss) {
    loss += ", on held-out data " + figures(*last.validation_loss, last.validation_accuracy);
  }
  const bool has_tokens = outcome.tokens_per_second > 0;
  console.print(fmt::format(
      "done         {} in {}: {}; {} {}/s", base::counted(outcome.step_count, "step"),
      base::format_duration(outcome.launch.seconds), loss,
      report::format_rate(has_tokens ? outcome.tokens_per_second : outcome.samples_per_second),
      has_tokens ? "tokens" : "samples"));
  print_deaths(outcome, console);
  if (!options.averaging) {
    console.print(
        fmt::format("drift        {:.3g}: the largest difference of a parameter between two "
                    "copies",
                    last.drift));
  }
  console.print(fmt::format("results      {} (metrics.jsonl, timings.jsonl, result.json)",
                            shown(options.out)));
  if (options.sample != 0) print_sample(options.out, console);
  console.print(fmt::format("state hash   {}{}", last.state_hash.value_or("none"),
                            options.averaging ? "" : " (of rank 0's copy)"));
  if (!options.averaging) return;
  console.print(fmt::format("prove it     {} verify {} --steps 1..{}", shell_word(program_name()),
                            shell_word(options.out), std::min<uint64_t>(10, outcome.step_count)));
}

void print_failure(const TrainOptions& options, const TrainingOutcome& outcome, Console& console) {
  if (outcome.step_count > 0) {
    console.warn(fmt::format("lockstep: {} {} written to {}", outcome.step_count,
                             outcome.step_count == 1 ? "step is" : "steps are",
                             shown(options.out)));
  }
  console.warn("lockstep: " + outcome.failure());
}

}  // namespace

int train_command(const std::vector<std::string>& arguments) {
  if (asks_for_help(arguments)) {
    Console().print(train::train_help());
    return kSuccess;
  }
  train::TrainRequest request = train::parse_train_arguments(arguments);
  static_cast<void>(worker_path());  // throws where it is missing
  train::PreparedTraining training = train::prepare_training(request);
  Console console(*report::parse_progress_mode(training.options.progress));
  shown_ranks(training.options.tee, training.options.replicas, training.options.log_folder,
              console);  // throws where it is no list of ranks
  const launch::Pinning pinning = pinning_of(training.options);
  const train::OutFolder out =
      train::prepare_out_folder(training.options.out, train::word_of(training.options.model));
  training.options.out = out.path;
  const TrainOptions& options = training.options;
  print_head(training, pinning.note, console);
  const TrainingOutcome outcome = run_training(training, pinning, console);
  const int status = outcome.exit_status();
  if (status == kSuccess) {
    print_success(training, outcome, console);
  } else {
    print_failure(options, outcome, console);
  }
  return status;
}

}  // namespace lockstep::cli
