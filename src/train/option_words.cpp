#include "src/train/option_words.h"

#include <algorithm>
#include <array>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/file.h"
#include "src/train/config_file.h"

namespace lockstep::train {
namespace {

enum class Kind { kValue, kList, kFlag };

struct Option {
  const char* name;
  const char* value;
  const char* group;  // "": not shown
  const char* text;
  Kind kind = Kind::kValue;
};

constexpr const char* kData = "Data";
constexpr const char* kModel = "Model";
constexpr const char* kReplicas = "Replicas and batch";
constexpr const char* kTraining = "Training";
constexpr const char* kRun = "Run";
constexpr const char* kHidden = "";

constexpr Option kOptions[] = {
    {"data", "PATH ...", kData, "text, folders of text, .bin tokens; of mlp MNIST's idx, or CSV",
     Kind::kList},
    {"validation", "PATH|SHARE", kData,
     "held-out data: a file, or a share of the samples, e.g. 0.1"},
    {"target", "COLUMN", kData, "mlp, CSV: what to predict, by name or number; default the last"},
    {"task", "classification|regression", kData, "mlp, CSV: where the target leaves it open"},
    {"model", "gpt|mlp", kModel, "default gpt"},
    {"layers", "L", kModel, "default 6; mlp 2 linear layers"},
    {"heads", "H", kModel, "gpt, default 6; must divide the width"},
    {"width", "W", kModel, "default 384; mlp 128"},
    {"context", "T", kModel, "gpt, tokens of one sequence, default 256"},
    {"dropout", "P", kModel, "default 0"},
    {"vocabulary", "V", kModel, "gpt, default 256 for text, what .bin files need, in 64s"},
    {"precision", "fp32|bf16", kModel, "default fp32"},
    {"replicas", "N", kReplicas, "default: what cores, microbatches and memory allow"},
    {"threads", "T", kReplicas, "per microbatch, default 1; part of the recipe"},
    {"global-batch", "B", kReplicas, "samples of one step, default 16; mlp 64"},
    {"microbatch", "M", kReplicas,
     "samples of one forward pass, default 1; mlp 32; part of the recipe"},
    {"per-replica", "P", kReplicas, "instead of --global-batch: B = P x N x A"},
    {"accumulate", "A", kReplicas, "with --per-replica, default 1"},
    {"steps", "S", kTraining, "default 200, unless --epochs is given; with both: what comes first"},
    {"epochs", "E", kTraining, "passes over the data"},
    {"optimizer", "adamw|sgd", kTraining, "default adamw"},
    {"lr", "RATE", kTraining, "default 3e-4; mlp 1e-3"},
    {"lr-scale", "none|linear|sqrt", kTraining, "scales --lr by global batch / base batch"},
    {"base-batch", "B", kTraining, "the global batch that --lr was found for"},
    {"warmup", "STEPS", kTraining, "linear, default 0"},
    {"decay", "none|cosine|linear", kTraining, "to 0 at the last step; default none"},
    {"weight-decay", "X", kTraining, "default 0.01; 0 for sgd"},
    {"momentum", "X", kTraining, "of sgd, default 0.9"},
    {"clip-norm", "X", kTraining, "the gradient's norm is at most this; default 0: off"},
    {"seed", "N", kTraining, "default: chosen once, printed and stored"},
    {"averaging", "on|off", kTraining, "off: the copies separate, to show what averaging is for"},
    {"out", "DIR", kRun, "default runs/MODEL-DATE-TIME"},
    {"evaluate-every", "STEPS", kRun, "on the held-out data; default 0: at the end only"},
    {"evaluation-microbatch", "M", kRun, "default 1; mlp 256; part of the recipe"},
    {"sample", "N", kRun, "gpt: tokens of text to generate at the end; default 0"},
    {"audit", "STEPS", kRun, "repeat the audit of the first step; default 0: never"},
    {"hash-every", "STEPS", kRun, "hash the whole state; default 0: at the end only"},
    {"kill", "RANK@STEP[:POINT]", kRun, "a drill: kills a replica there; repeatable", Kind::kList},
    {"progress", "auto|bar|plain|none", kRun, "default auto"},
    {"log-dir", "DIR", kRun,
     "what rank R prints is also appended to DIR/rank-R.out and DIR/rank-R.err, byte for byte"},
    {"pin", "auto|on|off", kRun, "bind each replica to cores of its own; default auto: where free"},
    {"tee", "RANKS", kRun, "whose lines are shown: all (default), none, 0, 0,2-3"},
    {"timeout", "SECONDS", kRun, "of a wait for another replica, default 300; 0: never"},
    {"config", "FILE", kRun, "TOML with any of these options, e.g. lr = 3e-4"},
    // Without influence on the result; tests show that.
    {"bucket-bytes", "BYTES", kHidden, ""},
    {"shuffle-claims", "SEED", kHidden, ""},
    // Of `lockstep verify RUN --steps A..B`: the schedule stays that of the whole run.
    {"stop-after", "STEP", kHidden, ""},
    // Known, so that they are refused in words and not as misspellings.
    {"checkpoint-every", "STEPS", kHidden, ""},
    {"keep", "K", kHidden, ""},
    {"resume", "", kHidden, "", Kind::kFlag},
    {"page", "", kHidden, "", Kind::kFlag},
};

const Option* find_option(std::string_view name) {
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const Option& option) { return name == option.name; });
  return found == std::end(kOptions) ? nullptr : found;
}

// How many letters must be added, removed or changed.
size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<size_t> row(right.size() + 1);  // [letters of right]
  for (size_t j = 0; j <= right.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= left.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t changed = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[right.size()];
}

std::string suggestion(std::string_view name) {
  const Option* nearest = nullptr;
  size_t least = 3;  // farther ones are no misspellings
  for (const Option& option : kOptions) {
    const size_t distance = edit_distance(name, option.name);
    if (distance < least && *option.group != '\0') {
      least = distance;
      nearest = &option;
    }
  }
  return nearest == nullptr ? "" : fmt::format(" Did you mean --{}?", nearest->name);
}

[[noreturn]] void refuse_usage(const std::string& message) {
  throw Error(ErrorCode::kUsage, message + " `lockstep train --help` lists the options.");
}

[[noreturn]] void refuse_word(const std::string& word) {
  const std::string quoted = base::quote_path(word);
  if (!word.starts_with('-')) {
    refuse_usage(fmt::format("{} belongs to no option (expected --NAME VALUE).", quoted));
  }
  const std::string name = word.substr(0, word.find('='));
  const size_t start = std::min(name.find_first_not_of('-'), name.size());
  refuse_usage(fmt::format("lockstep train has no option {}.{}", base::quote_path(name),
                           suggestion(std::string_view(name).substr(start))));
}

void add_options(CLI::App& app, std::map<std::string, std::vector<std::string>>& values) {
  for (const Option& option : kOptions) {
    const std::string flag = std::string("--") + option.name;
    CLI::Option* added = nullptr;
    if (option.kind == Kind::kFlag) {
      added = app.add_flag(flag, option.text);
    } else {
      added = app.add_option(flag, values[option.name], option.text)->type_name(option.value);
      added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      if (std::string_view(option.name) == "data") {
        added->expected(1, -1);
      } else {
        added->type_size(1)->expected(1)->allow_extra_args(false);
      }
    }
    added->group(option.group);
  }
}

}  // namespace

const std::string& OptionWords::last(std::string_view name) const {
  const auto found = words_.find(name);
  LOCKSTEP_CHECK(found != words_.end() && !found->second.empty(), name, "given");
  return found->second.back();
}

std::vector<std::string> OptionWords::all(std::string_view name) const {
  const auto found = words_.find(name);
  return found == words_.end() ? std::vector<std::string>() : found->second;
}

OptionWords OptionWords::read(const std::vector<std::string>& arguments) {
  OptionWords words;
  words.add_command_line(arguments);
  if (words.has("config")) words.add_config_file(words.last("config"));
  return words;
}

void OptionWords::add_command_line(const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::map<std::string, std::vector<std::string>> values;
  add_options(app, values);
  try {
    // CLI11 takes them from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();  // "--lr: 1 required TEXT missing"
    refuse_usage(
        fmt::format("{} needs a value, and none follows.", text.substr(0, text.find(':'))));
  } catch (const CLI::ParseError& error) {
    refuse_usage(fmt::format("The options were not understood ({}).", error.get_name()));
  }
  if (const auto rest = app.remaining(); !rest.empty()) refuse_word(rest.front());
  for (const Option& option : kOptions) {
    const CLI::Option* given = app.get_option(std::string("--") + option.name);
    if (given->count() == 0) continue;
    words_[option.name] =
        option.kind == Kind::kFlag ? std::vector<std::string>{"true"} : values[option.name];
  }
}

void OptionWords::add_config_file(const std::string& path) {
  std::map<std::string, std::vector<std::string>> found;
  for (ConfigEntry& entry : parse_config(base::read_file(path, 1 << 20), path)) {
    const auto refuse = [&](const std::string& problem) {
      throw Error(ErrorCode::kInput, fmt::format("cannot use {} (--config): line {}: the key {} {}",
                                                 base::quote_path(path), entry.line,
                                                 base::quote_path(entry.key), problem));
    };
    const Option* option = find_option(entry.key);
    if (option == nullptr || entry.key == "config") {
      refuse("is no option of lockstep train." + suggestion(entry.key));
    }
    const bool is_list = option->kind == Kind::kList;
    if (is_list ? entry.values.empty() : entry.values.size() != 1) refuse("needs one value.");
    found.emplace(entry.key, std::move(entry.values));
  }
  for (auto& [name, inputs] : found) words_.emplace(name, std::move(inputs));
}

std::string option_help() {
  std::string text;
  std::string_view group;
  for (const Option& option : kOptions) {
    if (*option.group == '\0') continue;
    if (group != option.group) {
      group = option.group;
      text += fmt::format("\n{}:\n", group);
    }
    text += fmt::format("  {:<32} {}\n", fmt::format("--{} {}", option.name, option.value),
                        option.text);
  }
  return text;
}

}  // namespace lockstep::train
