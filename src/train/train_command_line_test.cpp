#include "src/train/train_command_line.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"
#include "src/report/comma_locale.h"

namespace lockstep::train {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

TrainRequest parse(Words words) {
  words.insert(words.begin(), {"--data", "text"});
  return parse_train_arguments(words);
}

TrainOptions options_of(const Words& words) { return parse(words).options; }

// The message that the words are refused with; "" when they are not.
std::string refusal_of(const std::function<void()>& parsing, ErrorCode code = ErrorCode::kUsage) {
  try {
    parsing();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "";
}

std::string refusal(const Words& words) {
  return refusal_of([&] { parse(words); });
}

struct Config {
  explicit Config(const std::string& text) : path(folder.write("c.toml", text)) {}
  TrainOptions with(const Words& words = {}) const {
    Words all = {"--config", path};
    all.insert(all.end(), words.begin(), words.end());
    return parse_train_arguments(all).options;
  }
  std::string refusal(ErrorCode code = ErrorCode::kInput) const {
    return refusal_of([&] { with(); }, code);
  }
  base::TempFolder folder;
  std::string path;
};

TEST(TrainCommandLine, OneWordOfDataIsEnough) {
  const TrainRequest request = parse({});
  const TrainOptions& options = request.options;
  EXPECT_THAT(options.data, ElementsAre("text"));
  EXPECT_EQ(options.gpt.layers, 6u);
  EXPECT_EQ(options.gpt.heads, 6u);
  EXPECT_EQ(options.gpt.width, 384u);
  EXPECT_EQ(options.gpt.context, 256u);
  EXPECT_EQ(options.gpt.dropout, 0.0);
  EXPECT_EQ(options.threads, 1u);
  EXPECT_EQ(options.global_batch, 16u);
  EXPECT_EQ(options.microbatch, 1u);
  EXPECT_EQ(options.steps, 200u);
  EXPECT_EQ(options.epochs, 0u);
  EXPECT_EQ(options.optimizer, OptimizerKind::kAdamW);
  EXPECT_EQ(options.learning_rate, 3e-4);
  EXPECT_EQ(options.weight_decay, 0.01);
  EXPECT_TRUE(options.averaging);
  EXPECT_EQ(options.timeout_seconds, 300u);
  EXPECT_EQ(options.progress, "auto");
  EXPECT_FALSE(request.has_replicas || request.has_global_batch || request.has_vocabulary ||
               request.has_seed || request.has_length || request.has_out);
}

TEST(TrainCommandLine, TakesEveryOptionOfAGpt) {
  const TrainRequest request = parse_train_arguments({"--data",
                                                      "a",
                                                      "b c",
                                                      "--validation",
                                                      "held out.txt",
                                                      "--model",
                                                      "gpt",
                                                      "--layers",
                                                      "3",
                                                      "--heads",
                                                      "4",
                                                      "--width",
                                                      "64",
                                                      "--context",
                                                      "17",
                                                      "--dropout",
                                                      "0.25",
                                                      "--vocabulary",
                                                      "300",
                                                      "--precision",
                                                      "bf16",
                                                      "--replicas",
                                                      "3",
                                                      "--threads",
                                                      "2",
                                                      "--global-batch",
                                                      "12",
                                                      "--microbatch",
                                                      "5",
                                                      "--steps",
                                                      "9",
                                                      "--epochs",
                                                      "2",
                                                      "--optimizer",
                                                      "sgd",
                                                      "--lr",
                                                      "1e-2",
                                                      "--lr-scale",
                                                      "sqrt",
                                                      "--base-batch",
                                                      "3",
                                                      "--warmup",
                                                      "4",
                                                      "--decay",
                                                      "cosine",
                                                      "--weight-decay",
                                                      "0.5",
                                                      "--momentum",
                                                      "0.75",
                                                      "--clip-norm",
                                                      "1",
                                                      "--seed",
                                                      "18446744073709551615",
                                                      "--averaging",
                                                      "on",
                                                      "--out",
                                                      "o",
                                                      "--evaluate-every",
                                                      "6",
                                                      "--evaluation-microbatch",
                                                      "7",
                                                      "--sample",
                                                      "8",
                                                      "--audit",
                                                      "9",
                                                      "--hash-every",
                                                      "10",
                                                      "--kill",
                                                      "1@2",
                                                      "--kill",
                                                      "2@3",
                                                      "--progress",
                                                      "plain",
                                                      "--timeout",
                                                      "0"});
  const TrainOptions& options = request.options;
  EXPECT_THAT(options.data, ElementsAre("a", "b c"));
  EXPECT_EQ(options.validation_path, "held out.txt");
  EXPECT_EQ(options.gpt.layers, 3u);
  EXPECT_EQ(options.gpt.heads, 4u);
  EXPECT_EQ(options.gpt.width, 64u);
  EXPECT_EQ(options.gpt.context, 17u);
  EXPECT_EQ(options.gpt.dropout, 0.25);
  EXPECT_EQ(options.gpt.vocabulary, 300u);
  EXPECT_EQ(options.precision, Precision::kBf16);
  EXPECT_EQ(options.replicas, 3u);
  EXPECT_EQ(options.threads, 2u);
  EXPECT_EQ(options.global_batch, 12u);
  EXPECT_EQ(options.microbatch, 5u);
  EXPECT_EQ(options.steps, 9u);
  EXPECT_EQ(options.epochs, 2u);
  EXPECT_EQ(options.optimizer, OptimizerKind::kSgd);
  EXPECT_EQ(options.base_learning_rate, 1e-2);
  EXPECT_EQ(options.learning_rate, 1e-2 * 2);  // the square root of 12 / 3
  EXPECT_EQ(options.warmup, 4u);
  EXPECT_EQ(options.decay, Decay::kCosine);
  EXPECT_EQ(options.weight_decay, 0.5);
  EXPECT_EQ(options.momentum, 0.75);
  EXPECT_EQ(options.clip_norm, 1.0);
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.out, "o");
  EXPECT_EQ(options.evaluate_every, 6u);
  EXPECT_EQ(options.evaluation_microbatch, 7u);
  EXPECT_EQ(options.sample, 8u);
  EXPECT_EQ(options.audit, 9u);
  EXPECT_EQ(options.hash_every, 10u);
  EXPECT_THAT(options.kills, ElementsAre("1@2", "2@3"));
  EXPECT_EQ(options.progress, "plain");
  EXPECT_EQ(options.timeout_seconds, 0u);
  EXPECT_TRUE(request.has_replicas && request.has_global_batch && request.has_vocabulary &&
              request.has_seed && request.has_length && request.has_out);
}

TEST(TrainCommandLine, AnMlpHasDefaultsOfItsOwn) {
  const TrainOptions options = options_of({"--model", "mlp"});
  EXPECT_EQ(options.model, ModelKind::kMlp);
  EXPECT_EQ(options.mlp.layers, 2u);
  EXPECT_EQ(options.mlp.width, 128u);
  EXPECT_EQ(options.global_batch, 64u);
  EXPECT_EQ(options.microbatch, 32u);
  EXPECT_EQ(options.evaluation_microbatch, 256u);
  EXPECT_EQ(options.learning_rate, 1e-3);
}

TEST(TrainCommandLine, TakesEveryOptionOfAnMlp) {
  const TrainRequest request =
      parse({"--model", "mlp", "--layers", "3", "--width", "9", "--dropout", "0.5", "--task",
             "regression", "--target", "a b"});
  EXPECT_EQ(request.options.mlp.layers, 3u);
  EXPECT_EQ(request.options.mlp.width, 9u);
  EXPECT_EQ(request.options.mlp.dropout, 0.5);
  EXPECT_EQ(request.options.mlp.task, Task::kRegression);
  EXPECT_EQ(request.options.target, "a b");
  EXPECT_TRUE(request.has_task);
}

TEST(TrainCommandLine, LaterWordsWinAndDataAddUp) {
  EXPECT_EQ(options_of({"--lr", "1", "--lr=2"}).learning_rate, 2);
  EXPECT_THAT(options_of({"--data", "more"}).data, ElementsAre("text", "more"));
}

TEST(TrainCommandLine, SgdHasNoWeightDecayUnlessAsked) {
  EXPECT_EQ(options_of({"--optimizer", "sgd"}).weight_decay, 0);
  EXPECT_EQ(options_of({"--optimizer", "sgd"}).momentum, 0.9);
}

TEST(TrainCommandLine, ValidationIsAShareOrAFile) {
  EXPECT_EQ(options_of({"--validation", "0.125"}).validation_fraction, 0.125);
  EXPECT_EQ(options_of({"--validation", "./0.5"}).validation_path, "./0.5");
  EXPECT_EQ(options_of({"--validation", "0"}).validation_fraction, 0);
  EXPECT_FALSE(options_of({"--validation", "0"}).validation_path);
  EXPECT_THAT(refusal({"--validation", "1"}), HasSubstr("above 0 and below 1"));
  EXPECT_THAT(refusal({"--validation", "-0.5"}), HasSubstr("above 0 and below 1"));
  EXPECT_THAT(refusal({"--validation", "nan"}), HasSubstr("./nan"));
}

struct Refused {
  Words words;
  std::vector<std::string> say;  // what was found, what was expected, what to do
};

class TrainRefusal : public testing::TestWithParam<Refused> {};

void PrintTo(const Refused& refused, std::ostream* out) {
  for (const std::string& word : refused.words) *out << word << ' ';
}

TEST_P(TrainRefusal, SaysWhatWasExpectedAndFound) {
  const std::string message = refusal(GetParam().words);
  for (const std::string& text : GetParam().say) EXPECT_THAT(message, HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    Values, TrainRefusal,
    testing::Values(
        Refused{{"--global-batch", "0"}, {"--global-batch '0'", "whole number from 1"}},
        Refused{{"--global-batch", "-3"}, {"--global-batch '-3'", "whole number from 1"}},
        Refused{{"--global-batch", ""}, {"--global-batch ''", "whole number"}},
        Refused{{"--global-batch", "1e3"}, {"'1e3'", "whole number"}},
        Refused{{"--global-batch", " 8"}, {"' 8'", "whole number"}},
        Refused{{"--global-batch", "99999999999999999999"}, {"whole number from 1 to"}},
        Refused{{"--microbatch", "abc"}, {"--microbatch 'abc'", "whole number from 1"}},
        Refused{{"--microbatch", "0"}, {"--microbatch '0'"}},
        Refused{{"--replicas", "0"}, {"--replicas '0'", "from 1 to 256"}},
        Refused{{"--replicas", "257"}, {"--replicas '257'", "from 1 to 256"}},
        Refused{{"--threads", "0"}, {"--threads '0'", "from 1"}},
        Refused{{"--layers", "0"}, {"--layers '0'"}}, Refused{{"--heads", "0"}, {"--heads '0'"}},
        Refused{{"--width", "x"}, {"--width 'x'"}}, Refused{{"--context", "0"}, {"--context '0'"}},
        Refused{{"--vocabulary", "1"}, {"--vocabulary '1'", "from 2"}},
        Refused{{"--heads", "3", "--width", "32"}, {"--heads 3", "--width 32", "multiple of 3"}},
        Refused{{"--dropout", "1"}, {"--dropout 1", "below 1"}},
        Refused{{"--dropout", "-0.1"}, {"--dropout '-0.1'", "from 0 to 1"}},
        Refused{{"--dropout", "0,5"}, {"--dropout '0,5'", "with a point"}},
        Refused{{"--lr", "nan"}, {"--lr 'nan'", "at least 0"}},
        Refused{{"--lr", "inf"}, {"--lr 'inf'", "at least 0"}},
        Refused{{"--lr", "1e999"}, {"--lr '1e999'"}},
        Refused{{"--lr", "-1"}, {"--lr '-1'", "at least 0"}},
        Refused{{"--lr", "fast"}, {"--lr 'fast'", "as in 0.5 or 3e-4"}},
        Refused{{"--weight-decay", "-1"}, {"--weight-decay '-1'"}},
        Refused{{"--clip-norm", "-1"}, {"--clip-norm '-1'"}},
        Refused{{"--optimizer", "adam"}, {"--optimizer 'adam'", "adamw, sgd"}},
        Refused{{"--momentum", "0.9"}, {"--momentum", "--optimizer sgd"}},
        Refused{{"--decay", "step"}, {"--decay 'step'", "none, cosine, linear"}},
        Refused{{"--precision", "fp16"}, {"--precision 'fp16'", "fp32, bf16"}},
        Refused{{"--lr-scale", "quadratic"}, {"--lr-scale 'quadratic'", "none, linear, sqrt"}},
        Refused{{"--lr-scale", "linear"}, {"--lr-scale", "--base-batch"}},
        Refused{{"--base-batch", "8"}, {"--base-batch", "--lr-scale"}},
        Refused{{"--steps", "0"}, {"--steps '0'"}}, Refused{{"--epochs", "0"}, {"--epochs '0'"}},
        Refused{{"--seed", "-1"}, {"--seed '-1'", "whole number from 0"}},
        Refused{{"--averaging", "maybe"}, {"--averaging 'maybe'", "on, off"}},
        Refused{{"--evaluate-every", "2"}, {"--evaluate-every", "--validation"}},
        Refused{{"--out", ""}, {"--out ''", "folder"}},
        Refused{{"--progress", "loud"}, {"--progress 'loud'", "auto, bar, plain or none"}},
        Refused{{"--timeout", "-1"}, {"--timeout '-1'"}},
        Refused{{"--sample", "1e9"}, {"--sample '1e9'"}},
        Refused{{"--kill", "1"}, {"--kill '1'", "RANK@STEP"}},
        Refused{{"--kill", "1@0"}, {"--kill '1@0'", "counted from 1"}},
        Refused{{"--kill", "x@1"}, {"--kill 'x@1'", "e.g. 1@3"}},
        Refused{{"--kill", "0@1:nowhere"}, {"no point 'nowhere'", "Points are"}},
        Refused{{"--kill", "2@1", "--replicas", "2"}, {"--kill 2@1", "ranks 0 to 1"}},
        Refused{{"--kill", "0@1", "--averaging", "off"}, {"--kill", "--averaging off"}},
        Refused{{"--model", "cnn"}, {"--model cnn", "not there yet"}},
        Refused{{"--target", "x"}, {"--target belongs to --model mlp", "gpt"}},
        Refused{{"--task", "regression"}, {"--task belongs to --model mlp"}},
        Refused{{"--model", "mlp", "--heads", "2"}, {"--heads belongs to --model gpt", "mlp"}},
        Refused{{"--model", "mlp", "--context", "8"}, {"--context belongs to --model gpt"}},
        Refused{{"--model", "mlp", "--vocabulary", "8"}, {"--vocabulary belongs to --model gpt"}},
        Refused{{"--model", "mlp", "--sample", "8"}, {"--sample belongs to --model gpt"}},
        Refused{{"--model", "mlp", "--task", "ranking"},
                {"--task 'ranking'", "classification, regression"}},
        Refused{{"--model", "mlp", "--target", ""}, {"--target ''", "number from 1"}},
        Refused{{"--model", "mlp", "--layers", "1", "--width", "9"}, {"--width", "no effect"}},
        Refused{{"--model", "mlp", "--layers", "1", "--dropout", "0.5"},
                {"--dropout", "no effect"}},
        Refused{{"--model", "mlp", "--dropout", "1"}, {"--dropout 1 drops everything"}},
        Refused{{"--model", "bert"}, {"--model 'bert'", "expected gpt"}},
        Refused{{"--checkpoint-every", "5"}, {"--checkpoint-every", "not there yet"}},
        Refused{{"--keep", "5"}, {"--keep", "not there yet"}},
        Refused{{"--resume"}, {"--resume", "not there yet"}},
        Refused{{"--page"}, {"--page", "not there yet"}}));

INSTANTIATE_TEST_SUITE_P(
    Words, TrainRefusal,
    testing::Values(Refused{{"--no-such-flag"}, {"no option '--no-such-flag'", "--help"}},
                    Refused{{"--learning-rate=3"}, {"no option '--learning-rate'"}},
                    Refused{{"--global-batc", "3"}, {"Did you mean --global-batch?"}},
                    Refused{{"--l\nr", "3"}, {"'--l\\x0ar'"}},
                    Refused{{"-n", "3"}, {"no option '-n'"}},
                    Refused{{"--lr"}, {"--lr needs a value"}},
                    Refused{{"--seed", "1", "2"}, {"'2' belongs to no option"}}));

INSTANTIATE_TEST_SUITE_P(
    Dials, TrainRefusal,
    testing::Values(Refused{{"--accumulate", "2"}, {"--accumulate", "--per-replica"}},
                    Refused{{"--per-replica", "0"}, {"--per-replica '0'"}},
                    Refused{{"--global-batch", "9", "--per-replica", "2", "--replicas", "4"},
                            {"--global-batch 9 contradicts", "= 8"}},
                    Refused{{"--global-batch", "9", "--per-replica", "2"},
                            {"no whole number of replicas"}},
                    Refused{{"--per-replica", "1000000000000", "--accumulate", "1000000000000",
                             "--replicas", "2"},
                            {"more than the 1099511627776 samples"}},
                    Refused{{"--averaging", "off", "--global-batch", "3", "--replicas", "4"},
                            {"--averaging off", "makes 3 of them for 4 replicas"}},
                    Refused{{"--lr", "1e308", "--lr-scale", "linear", "--base-batch", "1",
                             "--global-batch", "100"},
                            {"no finite number"}}));

TEST(TrainCommandLine, RefusesWordsWithoutData) {
  EXPECT_THAT(refusal_of([] { parse_train_arguments({}); }), HasSubstr("--data is missing"));
  EXPECT_THAT(refusal_of([] { parse_train_arguments({"--data"}); }),
              HasSubstr("--data needs a value"));
  EXPECT_THAT(refusal_of([] { parse_train_arguments({"text"}); }),
              HasSubstr("'text' belongs to no option"));
}

TEST(TrainCommandLine, DialsMultiply) {
  const TrainRequest request =
      parse({"--per-replica", "4", "--replicas", "3", "--accumulate", "2"});
  EXPECT_EQ(request.options.global_batch, 24u);
  EXPECT_EQ(request.options.replicas, 3u);
}

TEST(TrainCommandLine, DialsAndGlobalBatchGiveTheReplicas) {
  const TrainRequest request =
      parse({"--per-replica", "4", "--global-batch", "24", "--accumulate", "2"});
  EXPECT_TRUE(request.has_replicas);
  EXPECT_EQ(request.options.replicas, 3u);
}

TEST(TrainCommandLine, DialsWaitForTheReplicas) {
  TrainRequest request = parse({"--per-replica", "4", "--lr-scale", "linear", "--base-batch", "8"});
  EXPECT_FALSE(request.has_replicas);
  request.options.replicas = 4;
  request.has_replicas = true;
  settle_batch(request);
  EXPECT_EQ(request.options.global_batch, 16u);
  EXPECT_EQ(request.options.learning_rate, 6e-4);
}

TEST(TrainCommandLine, LearningRateScales) {
  const Words words = {"--lr", "1e-3", "--global-batch", "64", "--base-batch", "16", "--lr-scale"};
  const auto scaled = [&](const char* scale) {
    Words all = words;
    all.emplace_back(scale);
    return options_of(all).learning_rate;
  };
  EXPECT_EQ(scaled("linear"), 4e-3);
  EXPECT_EQ(scaled("sqrt"), 2e-3);
}

TEST(TrainConfig, SetsEveryKindOfOption) {
  const Config config(
      "# a comment\n"
      "data = [\"a b\", \"c\"]\n"
      "lr = 1e-2  # another\n"
      "optimizer = \"sgd\"\n"
      "layers = 2\n\n"
      "averaging = false\n"
      "kill = [\"1@2\", \"1@3\"]\n");
  // --averaging off and --kill do not go together: the command line says otherwise.
  const TrainOptions options = config.with({"--averaging", "on"});
  EXPECT_THAT(options.data, ElementsAre("a b", "c"));
  EXPECT_EQ(options.learning_rate, 1e-2);
  EXPECT_EQ(options.optimizer, OptimizerKind::kSgd);
  EXPECT_EQ(options.gpt.layers, 2u);
  EXPECT_TRUE(options.averaging);
  EXPECT_THAT(options.kills, ElementsAre("1@2", "1@3"));
}

TEST(TrainConfig, WordsWinOverTheFile) {
  const Config config("data = \"a\"\nlr = 1\n");
  EXPECT_EQ(config.with({"--lr", "2"}).learning_rate, 2);
  EXPECT_THAT(config.with({"--data", "b"}).data, ElementsAre("b"));
}

TEST(TrainConfig, TakesCarriageReturnsUmlautsAndAnEmptyFile) {
  EXPECT_THAT(Config("data = \"Bücher/öl #1.txt\"\r\nlr = 0.5\r\n").with().data,
              ElementsAre("Bücher/öl #1.txt"));
  EXPECT_EQ(Config("").with({"--data", "a"}).learning_rate, 3e-4);
}

TEST(TrainConfig, RefusesWhatIsNoOption) {
  EXPECT_THAT(Config("data = \"a\"\nlearning = 1\n").refusal(),
              HasSubstr("line 2: the key 'learning' is no option"));
  EXPECT_THAT(Config("data = \"a\"\nwidht = 1\n").refusal(), HasSubstr("Did you mean --width?"));
  EXPECT_THAT(Config("config = \"a\"\n").refusal(), HasSubstr("'config' is no option"));
  EXPECT_THAT(Config("[model]\nlayers = 1\n").refusal(), HasSubstr("without sections"));
  EXPECT_THAT(Config("lr = 1\nlr = 2\n").refusal(), HasSubstr("'lr' comes twice"));
  EXPECT_THAT(Config("lr = [1, 2]\n").refusal(), HasSubstr("'lr' needs one value"));
}

TEST(TrainConfig, RefusesWrongValuesLikeTheCommandLine) {
  EXPECT_THAT(Config("data = \"a\"\nlr = nan\n").refusal(ErrorCode::kUsage),
              HasSubstr("--lr 'nan'"));
  EXPECT_THAT(Config("data = \"a\"\npage = true\n").refusal(ErrorCode::kUsage),
              HasSubstr("--page is not there yet"));
}

TEST(TrainConfig, RefusesWhatIsNoFileOfText) {
  const base::TempFolder folder;
  EXPECT_THAT(refusal_of(
                  [&] {
                    parse({"--config", folder.path("none")});
                  },
                  ErrorCode::kInput),
              HasSubstr(folder.path("none")));
  EXPECT_THAT(refusal_of(
                  [&] {
                    parse({"--config", folder.path()});
                  },
                  ErrorCode::kInput),
              HasSubstr("folder"));
  EXPECT_THAT(Config(std::string("\x7f"
                                 "ELF\0\1\2 = \n{[",
                                 13))
                  .refusal(),
              HasSubstr("--config"));
}

TEST(TrainArguments, ParseToTheSameOptions) {
  const std::vector<Words> lines = {
      {},
      {"--validation", "0.1", "--evaluate-every", "3", "--evaluation-microbatch", "2"},
      {"--validation", "-held", "--optimizer", "sgd", "--momentum", "0.25", "--weight-decay",
       "0.1"},
      {"--per-replica", "2", "--accumulate", "3", "--lr-scale", "sqrt", "--base-batch", "7", "--lr",
       "0.1"},
      {"--dropout", "0.30000000000000004", "--warmup", "3", "--decay", "linear", "--epochs", "2"},
      {"--kill", "1@2", "--kill", "0@1", "--bucket-bytes", "4096", "--shuffle-claims", "5",
       "--stop-after", "3", "--audit", "2", "--hash-every", "1", "--sample", "10"},
      {"--averaging", "off", "--precision", "bf16", "--timeout", "0", "--progress", "none",
       "--clip-norm", "0.5", "--microbatch", "3", "--threads", "2"},
      {"--data", "a b", "it's", "Bücher", "./-dash"},
  };
  for (Words words : lines) {
    words.insert(words.end(),
                 {"--replicas", "2", "--seed", "5", "--out=-o", "--vocabulary", "256"});
    const TrainOptions options = options_of(words);
    const Words written = train_arguments(options, ArgumentChoice::kAll);
    const TrainOptions again = parse_worker_arguments(written);
    EXPECT_EQ(train_arguments(again, ArgumentChoice::kAll), written);
    EXPECT_EQ(again.data, options.data);
    EXPECT_EQ(again.learning_rate, options.learning_rate);
    EXPECT_EQ(again.gpt.dropout, options.gpt.dropout);
    EXPECT_EQ(again.global_batch, options.global_batch);
    EXPECT_EQ(again.per_replica, options.per_replica);
    EXPECT_EQ(again.accumulate, options.accumulate);
    EXPECT_EQ(again.weight_decay, options.weight_decay);
    EXPECT_EQ(again.momentum, options.momentum);
    EXPECT_EQ(again.kills, options.kills);
    EXPECT_EQ(again.averaging, options.averaging);
    EXPECT_EQ(again.precision, options.precision);
    EXPECT_EQ(again.steps, options.steps);
    EXPECT_EQ(again.epochs, options.epochs);
    EXPECT_EQ(again.validation_fraction, options.validation_fraction);
    EXPECT_EQ(again.out, "./-o");
  }
}

TEST(TrainArguments, OfAnMlpParseToTheSameOptions) {
  const std::vector<Words> lines = {
      {},
      {"--layers", "1", "--task", "regression", "--target", "a b"},
      {"--layers", "4", "--width", "7", "--dropout", "0.1", "--microbatch", "1", "--lr", "3e-4",
       "--evaluation-microbatch", "1", "--global-batch", "16"},
  };
  for (Words words : lines) {
    words.insert(words.end(), {"--model", "mlp", "--replicas", "2", "--seed", "5", "--out", "o"});
    const TrainOptions options = options_of(words);
    const Words written = train_arguments(options, ArgumentChoice::kAll);
    const TrainOptions again = parse_worker_arguments(written);
    EXPECT_EQ(train_arguments(again, ArgumentChoice::kAll), written);
    const Words repeat = train_arguments(options, ArgumentChoice::kRepeat);
    const TrainOptions repeated = parse_train_arguments(repeat).options;
    for (const TrainOptions& found : {again, repeated}) {
      EXPECT_EQ(found.model, ModelKind::kMlp);
      EXPECT_EQ(found.mlp.layers, options.mlp.layers);
      EXPECT_EQ(found.mlp.width, options.mlp.width);
      EXPECT_EQ(found.mlp.dropout, options.mlp.dropout);
      EXPECT_EQ(found.mlp.task, options.mlp.task);
      EXPECT_EQ(found.target, options.target);
      EXPECT_EQ(found.global_batch, options.global_batch);
      EXPECT_EQ(found.microbatch, options.microbatch);
      EXPECT_EQ(found.learning_rate, options.learning_rate);
      EXPECT_EQ(found.evaluation_microbatch, options.evaluation_microbatch);
    }
  }
}

TEST(TrainArguments, PathsThatLookLikeOptionsStayPaths) {
  TrainOptions options = options_of({"--seed", "1"});
  options.data = {"--lr", "-x"};
  EXPECT_THAT(parse_train_arguments(train_arguments(options, ArgumentChoice::kRepeat)).options.data,
              ElementsAre("./--lr", "./-x"));
}

TEST(TrainArguments, RepeatLeavesOutDefaultsReplicasAndOut) {
  const Words words = {"--replicas",    "2", "--seed", "5",  "--out", "o",
                       "--per-replica", "3", "--kill", "1@1"};
  EXPECT_THAT(
      train_arguments(options_of(words), ArgumentChoice::kRepeat),
      ElementsAre("--global-batch", "6", "--steps", "200", "--seed", "5", "--data", "text"));
}

TEST(TrainArguments, AWorkerStartedByHandIsRefused) {
  EXPECT_THAT(refusal_of([] {
                parse_worker_arguments({"--data", "a"});
              }),
              HasSubstr("Run `lockstep train` instead"));
}

TEST(TrainHelp, NamesEveryOptionThatIsThere) {
  const std::string help = train_help();
  for (const char* name :
       {"data",     "target",       "task",       "validation",     "model",      "layers",
        "heads",    "width",        "context",    "dropout",        "config",     "replicas",
        "threads",  "global-batch", "microbatch", "per-replica",    "accumulate", "steps",
        "epochs",   "optimizer",    "lr",         "lr-scale",       "base-batch", "warmup",
        "decay",    "weight-decay", "clip-norm",  "precision",      "seed",       "averaging",
        "audit",    "hash-every",   "out",        "evaluate-every", "sample",     "kill",
        "progress", "timeout"}) {
    EXPECT_THAT(help, HasSubstr(std::string("--") + name + " "));
  }
  EXPECT_THAT(help, Not(HasSubstr("--page")));
}

TEST(TrainCommandLine, NumbersAreTheSameInEveryLocale) {
  const report::CommaLocale comma;
  const TrainOptions options =
      options_of({"--lr", "0.5", "--seed", "1234567", "--dropout", "0.25"});
  EXPECT_EQ(options.learning_rate, 0.5);
  EXPECT_THAT(train_arguments(options, ArgumentChoice::kRepeat), Contains("0.25"));
  EXPECT_THAT(train_arguments(options, ArgumentChoice::kRepeat), Contains("1234567"));
  EXPECT_EQ(Config("data = \"a\"\nlr = 0.5\nsteps = 1234567\n").with().steps, 1234567u);
}

TEST(LearningRate, CosineHasTheWorkedValues) {
  TrainOptions options;
  options.learning_rate = 1;
  options.decay = Decay::kCosine;
  EXPECT_NEAR(learning_rate_at(options, 25, 100), 0.853553, 5e-7);
  EXPECT_NEAR(learning_rate_at(options, 50, 100), 0.5, 1e-15);
  EXPECT_EQ(learning_rate_at(options, 0, 100), 1);
  EXPECT_EQ(learning_rate_at(options, 100, 100), 0);
  EXPECT_GT(learning_rate_at(options, 99, 100), 0);
}

TEST(LearningRate, WarmsUpToThePeakThenDecays) {
  TrainOptions options;
  options.learning_rate = 8;
  options.warmup = 4;
  options.decay = Decay::kLinear;
  EXPECT_EQ(learning_rate_at(options, 0, 12), 2);
  EXPECT_EQ(learning_rate_at(options, 3, 12), 8);
  EXPECT_EQ(learning_rate_at(options, 4, 12), 8);
  EXPECT_EQ(learning_rate_at(options, 8, 12), 4);
  EXPECT_EQ(learning_rate_at(options, 11, 12), 1);
  EXPECT_EQ(learning_rate_at(options, 12, 12), 0);
}

TEST(LearningRate, StaysFiniteWhereTheWarmUpIsTooLong) {
  TrainOptions options;
  options.learning_rate = 1;
  for (const Decay decay : {Decay::kNone, Decay::kCosine, Decay::kLinear}) {
    options.decay = decay;
    for (const uint64_t warmup : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{10}}) {
      options.warmup = warmup;
      for (uint64_t step = 0; step <= 3; ++step) {
        const double rate = learning_rate_at(options, step, 3);
        EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 1) << step << " " << warmup;
      }
    }
  }
}

TEST(GptSizes, CountsEveryNumber) {
  // 2 layers, width 4: embeddings (10 + 3) * 4, a layer 2 norms of 8, 4*16 and 8*16, norm 8,
  // head 40.
  EXPECT_EQ(
      gpt_parameter_count({.layers = 2, .heads = 2, .width = 4, .context = 3, .vocabulary = 10}),
      52u + 2 * (16 + 64 + 128) + 8 + 40);
}

TEST(MlpSizes, CountsEveryNumber) {
  EXPECT_EQ(mlp_parameter_count({.layers = 1, .inputs = 4, .outputs = 3}), 15u);
  EXPECT_EQ(mlp_parameter_count({.layers = 3, .width = 5, .inputs = 4, .outputs = 3}),
            25u + 30 + 18);
}

TEST(Microbatches, RoundUp) {
  TrainOptions options;
  options.global_batch = 11;
  options.microbatch = 2;
  EXPECT_EQ(microbatch_count(options), 6u);
  options.microbatch = uint64_t{1} << 40;
  EXPECT_EQ(microbatch_count(options), 1u);
}

}  // namespace
}  // namespace lockstep::train
