#include "src/cli/run_comparison.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/temp_folder.h"
#include "src/cli/training_run.h"
#include "src/train/train_command_line.h"

namespace lockstep::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

report::StepMetrics metrics_of(uint64_t step) {
  report::StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 5.0 / static_cast<double>(step);
  metrics.gradient_norm = 1;
  metrics.learning_rate = 3e-4;
  metrics.parameter_hash = std::string(32, 'a');
  return metrics;
}

StoredRun run_of(uint64_t steps) {
  StoredRun run;
  for (uint64_t step = 1; step <= steps; ++step) run.metrics.push_back(metrics_of(step));
  return run;
}

std::string refusal_of(const std::string& folder) {
  try {
    read_run(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.what();
  }
  return "";
}

// A finished run on the disk.
class Folder {
 public:
  explicit Folder(const std::vector<std::string>& words = {}, uint64_t steps = 3) {
    std::vector<std::string> all = {"--replicas",   "2",      "--seed", "5", "--out",
                                    folder_.path(), "--data", "a text"};
    all.insert(all.end(), words.begin(), words.end());
    training.options = train::parse_train_arguments(all).options;
    training.recipe =
        R"({"seed":5,"model":{"layers":6,"kind":"gpt"},"validation":null,"a~b":{"c/d":[1,2]}})";
    for (uint64_t step = 1; step <= steps; ++step) append(metrics_of(step));
    outcome.step_count = steps;
    outcome.is_complete = true;
    if (steps > 0) outcome.last = metrics_of(steps);
    outcome.last.state_hash = std::string(32, 'b');
  }
  void append(const report::StepMetrics& metrics) const {
    append_text("metrics.jsonl", report::metrics_line(metrics) + "\n");
  }
  void append_text(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::app) << text;
  }
  void write_result() const { cli::write_result(training, outcome); }
  std::string path(const std::string& name) const { return folder_.path(name); }
  const std::string& path() const { return folder_.path(); }
  StoredRun read() const { return read_run(path()); }

  train::PreparedTraining training;
  TrainingOutcome outcome;

 private:
  base::TempFolder folder_;
};

TEST(ResultFile, ReadsBackWhatWasWritten) {
  const Folder folder({"--lr", "1", "--validation", "0.5"});
  folder.write_result();
  const StoredResult result = read_result(folder.path());
  EXPECT_EQ(result.steps, 3u);
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.state_hash, std::string(32, 'b'));
  EXPECT_EQ(result.recipe.at("model.layers"), "6");
  EXPECT_EQ(result.recipe.at("model.kind"), "gpt");
  EXPECT_EQ(result.recipe.at("validation"), "null");
  EXPECT_FALSE(result.machine.at("cpu").empty());
  const auto again = train::parse_train_arguments(result.arguments);
  EXPECT_EQ(again.options.learning_rate, 1);
  EXPECT_EQ(again.options.seed, 5u);
  EXPECT_FALSE(again.has_replicas);
  EXPECT_FALSE(again.has_out);
  EXPECT_THAT(again.options.data,
              ElementsAre((std::filesystem::current_path() / "a text").string()));
}

TEST(ResultFile, TellsOfAFailedRunToo) {
  Folder folder({}, 0);
  folder.outcome = {};
  folder.outcome.launch.exit_status = 3;
  launch::Death death;
  death.rank = 1;
  death.description = "ended \"so\"\n";
  folder.outcome.launch.deaths.push_back(death);
  folder.write_result();
  const StoredResult result = read_result(folder.path());
  EXPECT_EQ(result.steps, 0u);
  EXPECT_FALSE(result.is_complete);
  EXPECT_FALSE(result.state_hash);
}

TEST(ResultFile, KeepsNaNAsAWord) {
  Folder folder;
  folder.outcome.last.loss = std::numeric_limits<double>::quiet_NaN();
  folder.write_result();
  EXPECT_THAT(base::read_file(folder.path("result.json")), HasSubstr("\"loss\": \"NaN\""));
  EXPECT_EQ(read_result(folder.path()).steps, 3u);
}

TEST(ResultFile, RefusesEveryTornPrefix) {
  const Folder folder;
  folder.write_result();
  const std::string text = base::read_file(folder.path("result.json"));
  for (size_t size = 0; size + 3 < text.size(); size += 13) {
    base::write_file_atomically(folder.path("result.json"), text.substr(0, size));
    EXPECT_THROW(read_result(folder.path()), Error) << size;
  }
}

TEST(ResultFile, RefusesOtherVersionsAndTypes) {
  const Folder folder;
  folder.write_result();
  const std::string text = base::read_file(folder.path("result.json"));
  const auto with = [&](const std::string& from, const std::string& to) -> std::string {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    base::write_file_atomically(folder.path("result.json"), changed);
    try {
      read_result(folder.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(with("\"format_version\": 1", "\"format_version\": 2"), HasSubstr("version is 2"));
  EXPECT_THAT(with("\"steps\": 3", "\"steps\": \"3\""), HasSubstr("no whole number"));
  EXPECT_THAT(with("\"steps\": 3", "\"steps\": -3"), HasSubstr("no whole number"));
  EXPECT_THAT(with("\"steps\": 3", "\"steps\": 3.5"), HasSubstr("no whole number"));
  EXPECT_THAT(with("\"complete\": true", "\"complete\": 1"), HasSubstr("another type"));
  EXPECT_THAT(with("\"recipe\"", "\"receipt\""), HasSubstr("missing"));
  EXPECT_THAT(with("\"arguments\": [", "\"arguments\": [7,"), HasSubstr("another type"));
}

TEST(RunComparison, EqualRunsDoNotDiffer) {
  EXPECT_FALSE(first_difference(run_of(3), run_of(3)));
  EXPECT_FALSE(first_difference(run_of(3), run_of(2)));
}

TEST(RunComparison, NamesTheFirstStepAndField) {
  struct Case {
    const char* what;
    std::function<void(report::StepMetrics&)> change;
  };
  const Case cases[] = {
      {"learning_rate", [](auto& metrics) { metrics.learning_rate = 1; }},
      {"loss", [](auto& metrics) { metrics.loss += 1e-15; }},
      {"gradient_norm", [](auto& metrics) { metrics.gradient_norm = 2; }},
      {"parameter_hash", [](auto& metrics) { metrics.parameter_hash[31] = 'b'; }},
      {"state_hash", [](auto& metrics) { metrics.state_hash = std::string(32, 'c'); }},
      {"validation_loss", [](auto& metrics) { metrics.validation_loss = 3; }},
      {"drift", [](auto& metrics) { metrics.drift = 1; }},
      {"epoch", [](auto& metrics) { metrics.epoch = 1; }},
  };
  for (const Case& kind : cases) {
    StoredRun a = run_of(4);
    StoredRun b = run_of(4);
    for (StoredRun* run : {&a, &b}) {
      run->metrics[1].state_hash = std::string(32, 'd');
      run->metrics[1].validation_loss = 2;
    }
    kind.change(b.metrics[1]);
    b.metrics[2].loss = 99;
    const auto difference = first_difference(a, b);
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->step, 2u);
    EXPECT_EQ(difference->what, kind.what);
    EXPECT_NE(difference->left, difference->right);
    // Every kind has a reason of its own words.
    EXPECT_FALSE(explain(a, b, *difference).empty());
  }
}

TEST(RunComparison, CausesComeBeforeEffects) {
  const StoredRun a = run_of(1);
  StoredRun b = run_of(1);
  b.metrics[0].parameter_hash[0] = 'f';
  b.metrics[0].gradient_norm = 2;
  EXPECT_EQ(first_difference(a, b)->what, "gradient_norm");
}

TEST(RunComparison, WhatOnlyOneTookIsNoDifference) {
  const StoredRun a = run_of(2);
  StoredRun b = run_of(2);
  b.metrics[0].state_hash = std::string(32, 'c');
  b.metrics[0].validation_loss = 1;
  EXPECT_FALSE(first_difference(a, b));
}

TEST(RunComparison, LooksAtTheStepsAskedForOnly) {
  const StoredRun a = run_of(5);
  StoredRun b = run_of(5);
  b.metrics[1].loss = 9;
  b.metrics[4].loss = 9;
  EXPECT_FALSE(first_difference(a, b, 3, 4));
  EXPECT_EQ(first_difference(a, b, 3)->step, 5u);
}

TEST(RunComparison, NamesRecipeFieldsThatDiffer) {
  StoredRun a = run_of(1);
  StoredRun b = run_of(1);
  EXPECT_THAT(recipe_differences(a, b), IsEmpty());
  a.result = StoredResult{};
  b.result = StoredResult{};
  a.result->recipe = {{"model.layers", "6"}, {"seed", "1"}, {"optimizer.momentum", "0.9"}};
  b.result->recipe = {{"model.layers", "4"}, {"seed", "1"}, {"extra", ""}};
  EXPECT_THAT(recipe_differences(a, b),
              ElementsAre("extra: nothing in A,  in B", "model.layers: 6 in A, 4 in B",
                          "optimizer.momentum: 0.9 in A, nothing in B"));
  b.metrics[0].loss = 9;
  EXPECT_THAT(explain(a, b, *first_difference(a, b)), Contains(HasSubstr("the recipes differ")));
}

TEST(RunComparison, ManyRecipeFieldsAreCounted) {
  StoredRun a = run_of(1);
  StoredRun b = run_of(1);
  a.result = StoredResult{};
  b.result = StoredResult{};
  for (int i = 0; i < 20; ++i) a.result->recipe["field" + std::to_string(i)] = "x";
  b.metrics[0].loss = 9;
  const auto lines = explain(a, b, *first_difference(a, b));
  EXPECT_EQ(lines.back(), "  and 14 more");
  EXPECT_LE(lines.size(), 10u);
}

TEST(RunComparison, ReadsARunWithoutAResult) {
  const Folder folder;
  const StoredRun run = folder.read();
  EXPECT_EQ(run.metrics.size(), 3u);
  EXPECT_FALSE(run.result);
  StoredRun other = run;
  other.metrics[0].loss = 1;
  EXPECT_THAT(explain(run, other, *first_difference(run, other)),
              Contains(HasSubstr("holds no result.json")));
}

TEST(RunComparison, ATornLastLineIsNoStep) {
  const Folder folder;
  folder.append_text("metrics.jsonl", "{\"step\":4,\"epo");
  EXPECT_EQ(folder.read().metrics.size(), 3u);
}

TEST(RunComparison, RefusesWhatIsNoRun) {
  const base::TempFolder folder;
  EXPECT_THAT(refusal_of(folder.path("none")), HasSubstr("is not there"));
  EXPECT_THAT(refusal_of(folder.write("file", "x")), HasSubstr("regular file"));
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("holds no metrics.jsonl"));
  folder.write("bad/metrics.jsonl", "nonsense\n");
  EXPECT_THAT(refusal_of(folder.path("bad")), HasSubstr("metrics.jsonl"));
  folder.write("gap/metrics.jsonl", report::metrics_line(metrics_of(1)) + "\n" +
                                        report::metrics_line(metrics_of(3)) + "\n");
  EXPECT_THAT(refusal_of(folder.path("gap")), HasSubstr("metrics.jsonl"));
}

TEST(ParameterComparison, NamesTheFirstInTheOrderOfTheModel) {
  const Folder a;
  const Folder b;
  const std::string first = "{\"step\":1,\"parameters\":{\"z\":\"1\",\"a\":\"2\",\"m\":\"3\"}}\n";
  a.append_text("parameter_hashes.jsonl",
                first + "{\"step\":2,\"parameters\":{\"z\":\"4\",\"a\":\"5\",\"m\":\"6\"}}\n");
  b.append_text("parameter_hashes.jsonl",
                first + "{\"step\":2,\"parameters\":{\"z\":\"7\",\"a\":\"5\",\"m\":\"8\"}}\n");
  const auto difference = first_parameter_difference(a.read(), b.read());
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 2u);
  EXPECT_EQ(difference->name, "z");
  EXPECT_EQ(difference->differing, 2u);
  EXPECT_EQ(difference->count, 3u);
  EXPECT_FALSE(first_parameter_difference(a.read(), a.read()));
}

TEST(ParameterComparison, SkipsLinesThatAreTornOrForeign) {
  const Folder a;
  const Folder b;
  for (const char* line :
       {"", "{", "[]", "7", "{\"step\":\"1\",\"parameters\":{}}", "{\"step\":1,\"parameters\":[1]}",
        "{\"step\":1}", "{\"step\":-1,\"parameters\":{}}"}) {
    a.append_text("parameter_hashes.jsonl", std::string(line) + "\n");
    b.append_text("parameter_hashes.jsonl", std::string(line) + "\n");
  }
  a.append_text("parameter_hashes.jsonl", "{\"step\":2,\"parameters\":{\"w\":\"1\"}}");
  b.append_text("parameter_hashes.jsonl", "{\"step\":2,\"parameters\":{\"w\":\"2\"}}");
  EXPECT_EQ(first_parameter_difference(a.read(), b.read())->name, "w");
}

// Runs of 3 and 5 steps, whose last lines of parameter hashes belong to other steps.
TEST(ParameterComparison, RunsOfUnequalLengthSayWhereTheyEndAndWhatWasStored) {
  const Folder a({}, 3);
  const Folder b({}, 5);
  a.append_text("parameter_hashes.jsonl", "{\"step\":3,\"parameters\":{\"w\":\"1\"}}\n");
  b.append_text("parameter_hashes.jsonl", "{\"step\":5,\"parameters\":{\"w\":\"2\"}}\n");
  const StoredRun left = a.read();
  StoredRun right = b.read();
  right.metrics[1].validation_loss = 2;
  StoredRun other = left;
  other.metrics[1].validation_loss = 1;
  auto lines = explain(other, right, *first_difference(other, right));
  EXPECT_THAT(lines, Contains("A ends with step 3, B with step 5; after step 3 the parameters are "
                              "equal"));
  EXPECT_THAT(lines,
              Contains("first parameter: not known; single parameters were hashed in A after "
                       "step 3, in B after step 5. With --hash-every 1 in both it has a name"));
  right.metrics[2].parameter_hash[0] = 'f';
  lines = explain(left, right, *first_difference(left, right));
  EXPECT_THAT(lines, Contains("A ends with step 3, B with step 5; after step 3 the parameters "
                              "differ"));
}

TEST(ParameterComparison, RunsWithoutHashesOfParametersSayWhose) {
  const Folder a;
  const Folder b;
  a.append_text("parameter_hashes.jsonl", "{\"step\":1,\"parameters\":{\"w\":\"1\"}}\n");
  a.append_text("parameter_hashes.jsonl", "{\"step\":3,\"parameters\":{\"w\":\"1\"}}\n");
  StoredRun right = b.read();
  right.metrics[1].parameter_hash[0] = 'f';
  EXPECT_THAT(explain(a.read(), right, *first_difference(a.read(), right)),
              Contains("first parameter: not known; single parameters were hashed in A after 2 "
                       "steps up to 3, in B never. With --hash-every 1 in both it has a name"));
}

// What differed may be a loss or the state of the optimizer.
TEST(ParameterComparison, EqualParametersAreSaidToBe) {
  const Folder a;
  const Folder b;
  for (const Folder* folder : {&a, &b}) {
    folder->append_text("parameter_hashes.jsonl", "{\"step\":3,\"parameters\":{\"w\":\"1\"}}\n");
  }
  StoredRun right = b.read();
  right.metrics[2].drift = 1;
  EXPECT_THAT(explain(a.read(), right, *first_difference(a.read(), right)),
              Contains("first parameter: none; all are equal after step 3, the last that both "
                       "hashed them after"));
}

}  // namespace
}  // namespace lockstep::cli
