#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/number.h"
#include "src/cli/command.h"
#include "src/cli/console.h"
#include "src/cli/run_comparison.h"
#include "src/cli/training_run.h"
#include "src/report/progress.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

using train::PreparedTraining;
using train::TrainRequest;

constexpr uint64_t kDefaultSteps = 10;

constexpr const char* kHelp =
    R"(usage: lockstep verify --replicas 1,2,3 [options of lockstep train] [--out DIR]
       lockstep verify RUN [--steps A..B] [--replicas 1,3]

The first form trains one recipe by each of the numbers of replicas and compares all that the
promise covers, byte by byte; it also measures what each number of replicas is good for, at the
same global batch and at the same batch per replica. 10 steps where --steps does not say more.
The second form trains a finished run again, by other numbers of replicas, and confirms what its
metrics.jsonl says about the steps A to B (there are no checkpoints yet: from the first step on).
Exit status: 0 the same bits, 1 other bits or a failed run, 2 wrong usage or data.)";

// The words of this command; what is left belongs to `lockstep train`.
struct VerifyWords {
  std::optional<std::string> run;  // of the second form
  std::optional<std::string> replicas;
  std::optional<std::string> steps;  // of the second form
  std::optional<std::string> out;
  std::vector<std::string> rest;
};

struct StepRange {
  uint64_t first = 1;
  uint64_t last = 0;
};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kUsage, message + " `lockstep verify --help` says more.");
}

VerifyWords split_words(const std::vector<std::string>& arguments) {
  VerifyWords words;
  size_t i = 0;
  if (!arguments.empty() && !arguments[0].starts_with('-')) words.run = arguments[i++];
  const auto take = [&](const char* name, std::optional<std::string>& value) {
    const std::string& word = arguments[i];
    if (word == name) {
      if (i + 1 >= arguments.size())
        refuse(fmt::format("{} needs a value, and none follows.", name));
      value = arguments[++i];
      return true;
    }
    if (!word.starts_with(std::string(name) + "=")) return false;
    value = word.substr(std::string_view(name).size() + 1);
    return true;
  };
  for (; i < arguments.size(); ++i) {
    if (take("--replicas", words.replicas) || take("--out", words.out)) continue;
    if (words.run && take("--steps", words.steps)) continue;
    words.rest.push_back(arguments[i]);
  }
  if (words.run && !words.rest.empty()) {
    refuse(fmt::format(
        "verify RUN takes --steps, --replicas and --out, and found {}: the recipe is the "
        "run's own.",
        base::quote_path(words.rest.front())));
  }
  return words;
}

std::vector<uint32_t> parse_counts(const std::string& text) {
  std::vector<uint32_t> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const auto count =
        base::number_from<uint64_t>(std::string_view(text).substr(begin, comma - begin));
    if (!count || *count < 1 || *count > exchange::kMaxReplicas) {
      refuse(fmt::format(
          "--replicas {}: expected numbers from 1 to {} with commas between them, as in "
          "1,2,3.",
          base::quote_path(text), exchange::kMaxReplicas));
    }
    if (std::find(counts.begin(), counts.end(), *count) == counts.end()) {
      counts.push_back(static_cast<uint32_t>(*count));
    }
    begin = comma + 1;
  }
  return counts;
}

StepRange parse_range(const std::string& text, uint64_t step_count) {
  const size_t dots = text.find("..");
  const auto first = base::number_from<uint64_t>(std::string_view(text).substr(0, dots));
  const auto last = dots == std::string::npos
                        ? first
                        : base::number_from<uint64_t>(std::string_view(text).substr(dots + 2));
  if (!first || !last || *first < 1 || *last < *first || *last > step_count) {
    refuse(
        fmt::format("--steps {}: expected A..B with 1 <= A <= B <= {}, the steps that the run has.",
                    base::quote_path(text), step_count));
  }
  return {*first, *last};
}

TrainRequest with_replicas(TrainRequest request, uint32_t count) {
  request.options.replicas = count;
  request.options.replica_reason = "as asked for";
  request.has_replicas = true;
  return request;
}

// One recipe by another number of replicas. What was found out about the data holds for it too.
PreparedTraining by_replicas(PreparedTraining training, uint32_t count) {
  training.options.replicas = count;
  training.options.replica_reason = "as asked for";
  training.memory = train::memory_need(training.options, count);
  return training;
}

// Refuses what one of the counts cannot do before the first is tried.
void check_counts(const TrainRequest& request, const std::vector<uint32_t>& counts) {
  for (const uint32_t count : counts) {
    TrainRequest with_count = with_replicas(request, count);
    train::settle_batch(with_count);
  }
}

double median_step_seconds(const std::string& folder) {
  std::vector<double> seconds;
  for (const auto& timings : report::read_timings(folder + "/timings.jsonl")) {
    seconds.push_back(timings.seconds);
  }
  // The first third warms caches up.
  seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 3));
  std::sort(seconds.begin(), seconds.end());
  return seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

struct Row {
  uint32_t replicas = 0;
  uint64_t global_batch = 0;
  std::string folder;
  report::StepMetrics last;
  double step_seconds = 0;  // median
  double samples_per_second() const {
    return step_seconds > 0 ? static_cast<double>(global_batch) / step_seconds : 0;
  }
};

// Runs one row; throws Failed, the reason being on the screen, when it does not come to its end.
Row train_row(PreparedTraining training, const std::string& folder, Console& console) {
  const train::OutFolder out = train::prepare_out_folder(folder, "verify");
  training.options.out = out.path;
  const TrainingOutcome outcome = run_training(training, pinning_of(training.options), console);
  if (outcome.exit_status() != kSuccess) {
    console.warn(fmt::format(
        "lockstep: verify: the run by {} {} in {} failed\nlockstep: {}", training.options.replicas,
        training.options.replicas == 1 ? "replica" : "replicas", folder, outcome.failure()));
    throw Failed(outcome.exit_status());
  }
  return {training.options.replicas, training.options.global_batch, folder, outcome.last,
          median_step_seconds(folder)};
}

std::string row_text(const Row& row, const Row& first, bool is_scaled) {
  const double speed = row.samples_per_second() / first.samples_per_second();
  return fmt::format("  {:>8}  {:>12}  {:>10.2f}  {:>9}  {:>8.2f}  {:>9.6f}  {}", row.replicas,
                     row.global_batch, 1000 * row.step_seconds,
                     report::format_rate(row.samples_per_second()),
                     is_scaled ? speed * first.replicas / row.replicas : speed, row.last.loss,
                     is_scaled ? row.last.parameter_hash : row.last.state_hash.value_or("none"));
}

void print_table_head(const std::string& title, bool is_scaled, Console& console) {
  console.print(title);
  console.print(fmt::format("  {:>8}  {:>12}  {:>10}  {:>9}  {:>8}  {:>9}  {}", "replicas",
                            "global batch", "ms a step", "samples/s",
                            is_scaled ? "per rep." : "speed-up", "loss",
                            is_scaled ? "parameter hash" : "state hash"));
}

// The verdict on rows of one recipe. True: the same bits.
bool print_verdict(const std::vector<Row>& rows, uint64_t steps, Console& console) {
  const std::string reference = base::read_file(rows[0].folder + "/metrics.jsonl");
  std::string counts;
  for (const Row& row : rows) {
    counts += (counts.empty() ? "" : ", ") + std::to_string(row.replicas);
    if (base::read_file(row.folder + "/metrics.jsonl") == reference) continue;
    console.print(fmt::format("verdict: OTHER BITS by {} replicas than by {}", row.replicas,
                              rows[0].replicas));
    const StoredRun a = read_run(rows[0].folder);
    const StoredRun b = read_run(row.folder);
    console.print(fmt::format("  A: {}\n  B: {}", a.folder, b.folder));
    if (const auto difference = first_difference(a, b)) {
      for (const std::string& line : explain(a, b, *difference)) console.print("  " + line);
    }
    return false;
  }
  console.print(
      fmt::format("verdict: same bits by {} replicas, {} {}: every loss, norm, parameter hash "
                  "and the final state are equal, byte by byte",
                  counts, steps, steps == 1 ? "step" : "steps"));
  return true;
}

// As near to global batch / most replicas as whole microbatches come.
uint64_t batch_per_replica(const train::TrainOptions& options, uint32_t most) {
  const uint64_t share = options.global_batch / most / options.microbatch * options.microbatch;
  return std::max<uint64_t>(share, options.microbatch);
}

int verify_recipe(const VerifyWords& words, Console& console) {
  std::vector<uint32_t> counts = parse_counts(words.replicas.value_or("1,2,3"));
  // One count alone would be compared with nothing.
  if (counts.size() == 1) counts.insert(counts.begin(), counts.front() == 1 ? 2 : 1);
  TrainRequest request = train::parse_train_arguments(words.rest);
  if (request.options.per_replica) {
    refuse("verify changes the number of replicas: give --global-batch instead of the dials.");
  }
  if (!request.options.log_folder.empty() || request.options.tee != "all") {
    refuse("verify starts several groups: --log-dir and --tee belong to lockstep train and run.");
  }
  if (!request.options.averaging) {
    refuse(
        "verify with --averaging off: without averaging the result does depend on the replicas.");
  }
  if (!request.has_length) request.options.steps = kDefaultSteps;
  request.has_length = true;
  static_cast<void>(worker_path());
  // Data and sizes are looked at, and a seed is chosen, once and before anything is made.
  const uint32_t most = *std::max_element(counts.begin(), counts.end());
  check_counts(request, counts);
  const auto training = train::prepare_training(with_replicas(request, most));
  request.options.seed = training.options.seed;
  request.has_seed = true;
  const train::OutFolder folder = train::prepare_out_folder(words.out.value_or(""), "verify");
  const std::string& out = folder.path;

  print_table_head(fmt::format("same global batch: {} {}, seed {}", training.step_count,
                               training.step_count == 1 ? "step" : "steps", request.options.seed),
                   false, console);
  std::vector<Row> rows;
  for (const uint32_t count : counts) {
    rows.push_back(train_row(by_replicas(training, count),
                             fmt::format("{}/replicas-{}", out, count), console));
    console.print(row_text(rows.back(), rows.front(), false));
  }
  TrainRequest scaled = request;
  scaled.has_global_batch = true;
  const uint64_t share = batch_per_replica(training.options, most);
  print_table_head(
      fmt::format("same batch per replica: {} (each row is a recipe of its own)", share), true,
      console);
  std::optional<Row> first;
  for (const uint32_t count : counts) {
    scaled.options.global_batch = share * count;
    const Row row = train_row(train::prepare_training(with_replicas(scaled, count)),
                              fmt::format("{}/scaled-{}", out, count), console);
    if (!first) first = row;
    console.print(row_text(row, *first, true));
  }
  const bool is_same = print_verdict(rows, training.step_count, console);
  console.print("the runs are in " + out);
  return is_same ? kSuccess : kFailure;
}

std::string new_folder(const std::string& run) {
  std::string folder = run + "/verify";
  for (int i = 2; std::filesystem::exists(folder); ++i)
    folder = fmt::format("{}/verify-{}", run, i);
  return folder;
}

int verify_run(const VerifyWords& words, Console& console) {
  const StoredRun run = read_run(*words.run);
  if (!run.result || run.metrics.empty()) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} holds no result.json with the recipe, or no step: nothing to confirm.",
                    base::quote_path(run.folder)));
  }
  TrainRequest request = train::parse_train_arguments(run.result->arguments);
  if (!request.options.averaging) {
    throw Error(ErrorCode::kUsage,
                "the run is one with --averaging off, whose result does depend on the "
                "replicas: nothing to confirm.");
  }
  const StepRange range = words.steps ? parse_range(*words.steps, run.metrics.size())
                                      : StepRange{1, run.metrics.size()};
  request.options.stop_after = range.last;
  request.options.sample = 0;
  const std::vector<uint32_t> counts = parse_counts(words.replicas.value_or("1,3"));
  static_cast<void>(worker_path());
  const PreparedTraining training = train::prepare_training(
      with_replicas(request, *std::max_element(counts.begin(), counts.end())));
  const std::string out = words.out ? *words.out : new_folder(run.folder);

  console.print(fmt::format("{}: steps {} to {} of {}, trained again from the first step on",
                            run.folder, range.first, range.last, run.metrics.size()));
  for (const uint32_t count : counts) {
    const Row row =
        train_row(by_replicas(training, count), fmt::format("{}/replicas-{}", out, count), console);
    const StoredRun again = read_run(row.folder);
    const auto recipe = recipe_differences(run, again);
    if (const auto difference = first_difference(run, again, range.first, range.last)) {
      console.print(fmt::format("verdict: OTHER BITS by {} {} than the run's", count,
                                count == 1 ? "replica" : "replicas"));
      console.print(fmt::format("  A: {}\n  B: {}", run.folder, again.folder));
      for (const std::string& line : explain(run, again, *difference)) console.print("  " + line);
      return kFailure;
    }
    for (const std::string& field : recipe) {
      console.print("  although the recipe is another now: " + field);
    }
    console.print(fmt::format("  {} {}: the same bits, parameter hash {} after step {}", count,
                              count == 1 ? "replica" : "replicas", row.last.parameter_hash,
                              range.last));
  }
  console.print(
      fmt::format("verdict: same bits: the log of the run is confirmed for the steps {} to {}",
                  range.first, range.last));
  return kSuccess;
}

}  // namespace

int verify_command(const std::vector<std::string>& arguments) {
  Console console;
  if (asks_for_help(arguments)) {
    console.print(kHelp);
    return kSuccess;
  }
  const VerifyWords words = split_words(arguments);
  return words.run ? verify_run(words, console) : verify_recipe(words, console);
}

}  // namespace lockstep::cli
