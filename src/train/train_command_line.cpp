#include "src/train/train_command_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/number.h"
#include "src/exchange/control.h"
#include "src/ledger/host.h"
#include "src/report/progress.h"
#include "src/train/option_words.h"

namespace lockstep::train {
namespace {

using base::number_from;
using base::quote_path;

constexpr std::array<std::string_view, 2> kModels = {"gpt", "mlp"};
constexpr std::array<std::string_view, 2> kTasks = {"classification", "regression"};
constexpr std::array<std::string_view, 2> kOptimizers = {"adamw", "sgd"};
constexpr std::array<std::string_view, 3> kDecays = {"none", "cosine", "linear"};
constexpr std::array<std::string_view, 3> kScalings = {"none", "linear", "sqrt"};
constexpr std::array<std::string_view, 2> kPrecisions = {"fp32", "bf16"};

constexpr uint64_t kMostSamples = uint64_t{1} << 40;  // in a batch; products of these fit
constexpr uint64_t kMostSteps = uint64_t{1} << 53;    // doubles count so far
constexpr uint64_t kMostSeconds = uint64_t{366} * 24 * 3600;
constexpr uint64_t kDefaultSteps = 200;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, message); }

// Takes the values of options out of the words, and refuses what is no such value.
class Reader {
 public:
  explicit Reader(const OptionWords& words) : words_(words) {}

  struct Range {
    uint64_t low;
    uint64_t high;
  };

  template <typename Whole>
  void whole(const char* name, Range range, Whole& value) const {
    if (!words_.has(name)) return;
    const std::string& text = words_.last(name);
    const auto number = number_from<uint64_t>(text);
    if (!number || *number < range.low || *number > range.high) {
      refuse(fmt::format("--{} {}: expected a whole number from {} to {}.", name, quote_path(text),
                         range.low, range.high));
    }
    value = static_cast<Whole>(*number);
  }

  void real(const char* name, double low, double high, double& value) const {
    if (!words_.has(name)) return;
    const std::string& text = words_.last(name);
    const auto number = number_from<double>(text);
    if (!number || !std::isfinite(*number) || *number < low || *number > high) {
      refuse(fmt::format("--{} {}: expected a number {}, with a point as in 0.5 or 3e-4.", name,
                         quote_path(text),
                         std::isinf(high) ? fmt::format("of at least {}", low)
                                          : fmt::format("from {} to {}", low, high)));
    }
    value = *number == 0 ? 0 : *number;  // no -0
  }

  template <size_t Count>
  size_t choice(const char* name, const std::array<std::string_view, Count>& choices,
                size_t value) const {
    if (!words_.has(name)) return value;
    const std::string& text = words_.last(name);
    const auto found = std::find(choices.begin(), choices.end(), text);
    if (found == choices.end()) {
      refuse(
          fmt::format("--{} {}: expected {}.", name, quote_path(text), fmt::join(choices, ", ")));
    }
    return static_cast<size_t>(found - choices.begin());
  }

 private:
  const OptionWords& words_;
};

// What is trained where nobody says otherwise.
TrainOptions usual_options(ModelKind model) {
  TrainOptions options;
  options.model = model;
  if (model == ModelKind::kGpt) return options;
  options.global_batch = 64;
  options.microbatch = 32;
  options.evaluation_microbatch = 256;
  options.base_learning_rate = 1e-3;
  return options;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void refuse_what_is_not_there(const OptionWords& words) {
  for (const char* name : {"checkpoint-every", "keep", "resume"}) {
    if (!words.has(name)) continue;
    refuse(fmt::format("--{} is not there yet: this version writes no checkpoints.", name));
  }
  if (words.has("page")) {
    refuse("--page is not there yet: this version shows a run in the terminal only.");
  }
  if (words.has("model") && words.last("model") == "cnn") {
    refuse("--model cnn is not there yet: this version trains gpt and mlp.");
  }
}

void read_data(const OptionWords& words, TrainOptions& options) {
  options.data = words.all("data");
  if (options.data.empty()) {
    refuse(
        "--data is missing: which files to train on? Text, folders of text or .bin token files "
        "for --model gpt; MNIST's idx files or CSV for --model mlp.");
  }
  if (!words.has("validation")) return;
  const std::string& text = words.last("validation");
  const auto share = number_from<double>(text);
  if (!share) {
    options.validation_path = text;
  } else if (*share > 0 && *share < 1) {
    options.validation_fraction = *share;
  } else if (*share != 0) {
    refuse(
        fmt::format("--validation {}: a share must be above 0 and below 1 (a file of that name: "
                    "./{}).",
                    quote_path(text), text));
  }
}

// What a model has no use for is a mistake about the model.
void refuse_options_of_another_model(const OptionWords& words, ModelKind model) {
  const auto refuse_all = [&](std::initializer_list<const char*> names, ModelKind owner) {
    for (const char* name : names) {
      if (!words.has(name)) continue;
      refuse(fmt::format("--{} belongs to --model {}; {} has none.", name, word_of(owner),
                         word_of(model)));
    }
  };
  if (model == ModelKind::kMlp) {
    refuse_all({"heads", "context", "vocabulary", "sample"}, ModelKind::kGpt);
  } else {
    refuse_all({"target", "task"}, ModelKind::kMlp);
  }
}

void read_gpt(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  GptSizes& gpt = request.options.gpt;
  reader.whole("layers", {1, 10'000}, gpt.layers);
  reader.whole("heads", {1, 65'536}, gpt.heads);
  reader.whole("width", {1, 1 << 20}, gpt.width);
  reader.whole("context", {1, 1 << 24}, gpt.context);
  reader.whole("vocabulary", {2, std::numeric_limits<int32_t>::max()}, gpt.vocabulary);
  reader.real("dropout", 0, 1, gpt.dropout);
  request.has_vocabulary = words.has("vocabulary");
  if (gpt.width % gpt.heads != 0) {
    refuse(
        fmt::format("--heads {} does not divide --width {}: each head has width / heads numbers. "
                    "Take a multiple of {} as width.",
                    gpt.heads, gpt.width, gpt.heads));
  }
}

void read_mlp(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  TrainOptions& options = request.options;
  MlpSizes& mlp = options.mlp;
  reader.whole("layers", {1, 10'000}, mlp.layers);
  reader.whole("width", {1, 1 << 20}, mlp.width);
  reader.real("dropout", 0, 1, mlp.dropout);
  if (mlp.layers == 1 && words.has("width")) {
    refuse("--width with --layers 1 has no effect: a single layer goes from inputs to outputs.");
  }
  if (mlp.layers == 1 && mlp.dropout > 0) {
    refuse("--dropout with --layers 1 has no effect: there is nothing between two layers.");
  }
  if (words.has("target")) options.target = words.last("target");
  if (words.has("target") && options.target.empty()) {
    refuse("--target '': expected the name of a column, or its number from 1.");
  }
  request.has_task = words.has("task");
  mlp.task = static_cast<Task>(reader.choice("task", kTasks, 0));
}

void read_model(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  TrainOptions& options = request.options;
  refuse_options_of_another_model(words, options.model);
  if (options.model == ModelKind::kGpt) {
    read_gpt(words, reader, request);
  } else {
    read_mlp(words, reader, request);
  }
  if (options.gpt.dropout == 1 || options.mlp.dropout == 1) {
    refuse("--dropout 1 drops everything: expected a number below 1.");
  }
  options.precision = static_cast<Precision>(reader.choice("precision", kPrecisions, 0));
}

void read_batch(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  TrainOptions& options = request.options;
  request.has_replicas = words.has("replicas");
  request.has_global_batch = words.has("global-batch");
  reader.whole("replicas", {1, exchange::kMaxReplicas}, options.replicas);
  if (request.has_replicas) options.replica_reason = "as asked for";
  reader.whole("threads", {1, 1024}, options.threads);
  reader.whole("global-batch", {1, kMostSamples}, options.global_batch);
  reader.whole("microbatch", {1, kMostSamples}, options.microbatch);
  reader.whole("accumulate", {1, kMostSamples}, options.accumulate);
  if (words.has("per-replica")) {
    options.per_replica = 1;
    reader.whole("per-replica", {1, kMostSamples}, *options.per_replica);
  } else if (words.has("accumulate")) {
    refuse(
        "--accumulate is one of the dials (global batch = --per-replica x --replicas x "
        "--accumulate): give --per-replica too, or only --global-batch.");
  }
}

void read_optimizer(const OptionWords& words, const Reader& reader, TrainOptions& options) {
  options.optimizer = static_cast<OptimizerKind>(reader.choice("optimizer", kOptimizers, 0));
  if (options.optimizer == OptimizerKind::kSgd) {
    options.weight_decay = 0;
  } else if (words.has("momentum")) {
    refuse("--momentum belongs to --optimizer sgd; adamw has none.");
  }
  reader.real("lr", 0, kInfinity, options.base_learning_rate);
  reader.real("weight-decay", 0, kInfinity, options.weight_decay);
  reader.real("momentum", 0, 1, options.momentum);
  reader.real("clip-norm", 0, kInfinity, options.clip_norm);
  reader.whole("warmup", {0, kMostSteps}, options.warmup);
  reader.whole("base-batch", {1, kMostSamples}, options.base_batch);
  options.decay = static_cast<Decay>(reader.choice("decay", kDecays, 0));
  options.learning_rate_scaling =
      static_cast<LearningRateScaling>(reader.choice("lr-scale", kScalings, 0));
  const bool is_scaled = options.learning_rate_scaling != LearningRateScaling::kNone;
  if (is_scaled && !words.has("base-batch")) {
    refuse(
        fmt::format("--lr-scale {} needs --base-batch: the global batch that --lr was found for.",
                    word_of(options.learning_rate_scaling)));
  }
  if (!is_scaled && words.has("base-batch")) {
    refuse("--base-batch without --lr-scale linear or sqrt has no effect: give both or neither.");
  }
}

void read_length(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  TrainOptions& options = request.options;
  reader.whole("steps", {1, kMostSteps}, options.steps);
  reader.whole("epochs", {1, kMostSteps}, options.epochs);
  request.has_length = words.has("steps") || words.has("epochs");
  if (!request.has_length) options.steps = kDefaultSteps;
  request.has_seed = words.has("seed");
  reader.whole("seed", {0, std::numeric_limits<uint64_t>::max()}, options.seed);
}

void read_run(const OptionWords& words, const Reader& reader, TrainRequest& request) {
  TrainOptions& options = request.options;
  constexpr std::array<std::string_view, 4> kOnOff = {"on", "off", "true", "false"};
  options.averaging = reader.choice("averaging", kOnOff, 0) % 2 == 0;
  reader.whole("audit", {0, kMostSteps}, options.audit);
  reader.whole("hash-every", {0, kMostSteps}, options.hash_every);
  reader.whole("evaluate-every", {0, kMostSteps}, options.evaluate_every);
  reader.whole("evaluation-microbatch", {1, kMostSamples}, options.evaluation_microbatch);
  reader.whole("sample", {0, 1'000'000}, options.sample);
  reader.whole("timeout", {0, kMostSeconds}, options.timeout_seconds);
  reader.whole("bucket-bytes", {0, uint64_t{1} << 40}, options.bucket_bytes);
  reader.whole("shuffle-claims", {0, std::numeric_limits<uint64_t>::max()}, options.shuffle_claims);
  reader.whole("stop-after", {0, kMostSteps}, options.stop_after);
  const bool validates = options.validation_path || options.validation_fraction > 0;
  if (options.evaluate_every != 0 && !validates) {
    refuse("--evaluate-every needs held-out data: give --validation a file or a share, e.g. 0.1.");
  }
  request.has_out = words.has("out");
  if (request.has_out) options.out = words.last("out");
  if (request.has_out && options.out.empty()) refuse("--out '': expected the name of a folder.");
  if (words.has("log-dir")) options.log_folder = words.last("log-dir");
  if (words.has("log-dir") && options.log_folder.empty()) {
    refuse("--log-dir '': expected the name of a folder.");
  }
  constexpr std::array<std::string_view, 3> kPinModes = {"auto", "on", "off"};
  options.pin = kPinModes[reader.choice("pin", kPinModes, 0)];
  if (words.has("tee")) options.tee = words.last("tee");
  if (words.has("progress")) options.progress = words.last("progress");
  if (!report::parse_progress_mode(options.progress)) {
    refuse(fmt::format("--progress {}: expected auto, bar, plain or none.",
                       quote_path(options.progress)));
  }
}

void check_point(const std::string& drill, std::string_view name) {
  std::vector<std::string> known;
  for (int i = 0; i < ledger::kPointCount; ++i) {
    known.emplace_back(ledger::point_name(static_cast<ledger::Point>(i)));
    if (known.back() == name) return;
  }
  refuse(fmt::format("--kill {}: there is no point {}. Points are {}.", quote_path(drill),
                     quote_path(name), fmt::join(known, ", ")));
}

void read_drills(const OptionWords& words, TrainOptions& options) {
  options.kills = words.all("kill");
  for (const std::string& drill : options.kills) {
    const std::string_view text = drill;
    const size_t at = std::min(text.find('@'), text.size());
    const size_t colon = std::min(text.find(':'), text.size());
    const auto rank = number_from<uint32_t>(text.substr(0, at));
    const auto step =
        at < colon ? number_from<uint64_t>(text.substr(at + 1, colon - at - 1)) : std::nullopt;
    if (!rank || !step || *step == 0) {
      refuse(
          fmt::format("--kill {}: expected RANK@STEP or RANK@STEP:POINT, steps counted from 1, "
                      "e.g. 1@3.",
                      quote_path(drill)));
    }
    if (colon < text.size()) check_point(drill, text.substr(colon + 1));
  }
  if (!options.kills.empty() && !options.averaging) {
    refuse("--kill with --averaging off: parts are fixed then, so the others cannot go on.");
  }
}

std::string shortest(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), error == std::errc() ? end : text.data()};
}

// A path that begins with '-' would be read as an option.
std::string no_option(const std::string& path) {
  return path.starts_with('-') ? "./" + path : path;
}

// Collects "--name value"; leaves out what is the default where asked to.
class Writer {
 public:
  Writer(ArgumentChoice choice, std::vector<std::string>& arguments)
      : choice_(choice), arguments_(arguments) {}

  void text(const char* name, const std::string& value) {
    arguments_.push_back(std::string("--") + name);
    arguments_.push_back(value);
  }
  void word(const char* name, std::string_view value, std::string_view usual) {
    if (choice_ == ArgumentChoice::kAll || value != usual) text(name, std::string(value));
  }
  void whole(const char* name, uint64_t value, uint64_t usual) {
    if (choice_ == ArgumentChoice::kAll || value != usual) text(name, std::to_string(value));
  }
  void real(const char* name, double value, double usual) {
    if (choice_ == ArgumentChoice::kAll || value != usual) text(name, shortest(value));
  }

 private:
  ArgumentChoice choice_;
  std::vector<std::string>& arguments_;
};

void write_gpt(const TrainOptions& options, Writer& writer) {
  const GptSizes usual;
  const GptSizes& gpt = options.gpt;
  writer.whole("layers", gpt.layers, usual.layers);
  writer.whole("heads", gpt.heads, usual.heads);
  writer.whole("width", gpt.width, usual.width);
  writer.whole("context", gpt.context, usual.context);
  writer.whole("vocabulary", gpt.vocabulary, usual.vocabulary);
  writer.real("dropout", gpt.dropout, usual.dropout);
}

void write_mlp(const TrainOptions& options, Writer& writer) {
  const MlpSizes usual;
  const MlpSizes& mlp = options.mlp;
  writer.whole("layers", mlp.layers, usual.layers);
  if (mlp.layers > 1) writer.whole("width", mlp.width, usual.width);
  if (mlp.layers > 1) writer.real("dropout", mlp.dropout, usual.dropout);
  writer.text("task", std::string(word_of(mlp.task)));
  if (!options.target.empty()) writer.text("target", options.target);
}

void write_model(const TrainOptions& options, Writer& writer) {
  writer.word("model", word_of(options.model), word_of(ModelKind::kGpt));
  options.model == ModelKind::kGpt ? write_gpt(options, writer) : write_mlp(options, writer);
  writer.word("precision", word_of(options.precision), word_of(Precision::kFp32));
}

void write_training(const TrainOptions& options, Writer& writer) {
  const TrainOptions usual = usual_options(options.model);
  const bool is_sgd = options.optimizer == OptimizerKind::kSgd;
  if (options.steps != 0) writer.text("steps", std::to_string(options.steps));
  if (options.epochs != 0) writer.text("epochs", std::to_string(options.epochs));
  writer.text("seed", std::to_string(options.seed));
  writer.word("optimizer", word_of(options.optimizer), word_of(usual.optimizer));
  writer.real("lr", options.base_learning_rate, usual.base_learning_rate);
  if (options.learning_rate_scaling != LearningRateScaling::kNone) {
    writer.word("lr-scale", word_of(options.learning_rate_scaling), "");
    writer.text("base-batch", std::to_string(options.base_batch));
  }
  writer.whole("warmup", options.warmup, usual.warmup);
  writer.word("decay", word_of(options.decay), word_of(usual.decay));
  writer.real("weight-decay", options.weight_decay, is_sgd ? 0 : usual.weight_decay);
  if (is_sgd) writer.real("momentum", options.momentum, usual.momentum);
  writer.real("clip-norm", options.clip_norm, usual.clip_norm);
  writer.word("averaging", options.averaging ? "on" : "off", "on");
  writer.whole("hash-every", options.hash_every, usual.hash_every);
  writer.whole("evaluate-every", options.evaluate_every, usual.evaluate_every);
  writer.whole("evaluation-microbatch", options.evaluation_microbatch, usual.evaluation_microbatch);
}

void write_run(const TrainOptions& options, Writer& writer) {
  const TrainOptions usual = usual_options(options.model);
  writer.text("replicas", std::to_string(options.replicas));
  if (options.per_replica) {
    writer.text("per-replica", std::to_string(*options.per_replica));
    writer.text("accumulate", std::to_string(options.accumulate));
  }
  writer.whole("audit", options.audit, usual.audit);
  if (options.model == ModelKind::kGpt) writer.whole("sample", options.sample, usual.sample);
  for (const std::string& drill : options.kills) writer.text("kill", drill);
  writer.whole("bucket-bytes", options.bucket_bytes, usual.bucket_bytes);
  writer.whole("shuffle-claims", options.shuffle_claims, usual.shuffle_claims);
  writer.whole("stop-after", options.stop_after, usual.stop_after);
  writer.text("out", no_option(options.out));
  writer.word("progress", options.progress, usual.progress);
  writer.whole("timeout", options.timeout_seconds, usual.timeout_seconds);
}

}  // namespace

std::string_view word_of(ModelKind kind) { return kModels[static_cast<size_t>(kind)]; }
std::string_view word_of(Task task) { return kTasks[static_cast<size_t>(task)]; }
std::string_view word_of(OptimizerKind kind) { return kOptimizers[static_cast<size_t>(kind)]; }
std::string_view word_of(Decay decay) { return kDecays[static_cast<size_t>(decay)]; }
std::string_view word_of(LearningRateScaling s) { return kScalings[static_cast<size_t>(s)]; }
std::string_view word_of(Precision precision) {
  return kPrecisions[static_cast<size_t>(precision)];
}

TrainRequest parse_train_arguments(const std::vector<std::string>& arguments) {
  const OptionWords words = OptionWords::read(arguments);
  const Reader reader(words);
  TrainRequest request;
  refuse_what_is_not_there(words);
  request.options = usual_options(static_cast<ModelKind>(reader.choice("model", kModels, 0)));
  read_data(words, request.options);
  read_model(words, reader, request);
  read_batch(words, reader, request);
  read_optimizer(words, reader, request.options);
  read_length(words, reader, request);
  read_run(words, reader, request);
  read_drills(words, request.options);
  settle_batch(request);
  return request;
}

TrainOptions parse_worker_arguments(const std::vector<std::string>& arguments) {
  const TrainRequest request = parse_train_arguments(arguments);
  const bool knows_model =
      request.options.model == ModelKind::kGpt ? request.has_vocabulary : request.has_task;
  if (!request.has_replicas || !request.has_seed || !request.has_out || !knows_model) {
    refuse(
        "lockstep_worker is started by `lockstep train`, which decides --replicas, --seed, --out "
        "and --vocabulary or --task. Run `lockstep train` instead.");
  }
  return request.options;
}

std::vector<std::string> train_arguments(const TrainOptions& options, ArgumentChoice choice) {
  std::vector<std::string> arguments;
  Writer writer(choice, arguments);
  if (choice == ArgumentChoice::kAll) write_run(options, writer);
  write_model(options, writer);
  writer.whole("threads", options.threads, 1);
  writer.text("global-batch", std::to_string(options.global_batch));
  writer.whole("microbatch", options.microbatch, usual_options(options.model).microbatch);
  write_training(options, writer);
  if (options.validation_path) writer.text("validation", no_option(*options.validation_path));
  if (options.validation_fraction > 0) {
    writer.real("validation", options.validation_fraction, 0);
  }
  // Last: it takes all words up to the next option.
  arguments.emplace_back("--data");
  for (const std::string& path : options.data) arguments.push_back(no_option(path));
  return arguments;
}

std::string train_help() {
  return "usage: lockstep train --data PATH ... [options]\n\n"
         "Trains a GPT or an MLP by several replicas on this machine. The result is the same to "
         "the last "
         "bit\n"
         "for any number of replicas, also when some of them die on the way.\n" +
         option_help();
}

}  // namespace lockstep::train
