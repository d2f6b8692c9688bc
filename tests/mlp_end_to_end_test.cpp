// lockstep train --model mlp with real replicas, tiny.

#include <cmath>

#include <gmock/gmock.h>

#include "tests/end_to_end.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Numbers that cancel when they are added in another order.
std::string table(int rows, bool has_classes) {
  std::string text = "a,\"b, c\",d,y\r\n";
  uint32_t state = 1;
  const auto draw = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<int>(state >> 22) - 512;
  };
  for (int row = 0; row < rows; ++row) {
    const int a = draw();
    const int b = draw();
    text += std::to_string(a) + "e3,-" + std::to_string(row) + ".5," + std::to_string(b) + ",";
    text += has_classes ? (a > 0   ? "gr\xc3\xbcn"
                           : b > 0 ? "red"
                                   : "blue")
                        : std::to_string(a - b) + ".25";
    text += "\r\n";
  }
  return text;
}

class MlpEndToEnd : public EndToEnd {
 protected:
  MlpEndToEnd() {
    classes_ = folder_.write("\xe8\xa1\xa8 1.csv", table(311, true));
    numbers_ = folder_.write("numbers.csv", table(200, false));
  }
  Words recipe() const override {
    return {"--model", "mlp", "--width", "16", "--seed", "7", "--progress", "none"};
  }

  std::string classes_;
  std::string numbers_;
};

TEST_F(MlpEndToEnd, SameBitsForAnyNumberOfReplicas) {
  std::string reference;
  for (const char* replicas : {"1", "2", "3", "4", "5", "7", "8"}) {
    const std::string bits = train(std::string("n") + replicas, {"--data",
                                                                 classes_,
                                                                 "--layers",
                                                                 "3",
                                                                 "--dropout",
                                                                 "0.3",
                                                                 "--global-batch",
                                                                 "50",
                                                                 "--microbatch",
                                                                 "7",
                                                                 "--epochs",
                                                                 "2",
                                                                 "--replicas",
                                                                 replicas,
                                                                 "--validation",
                                                                 "0.2",
                                                                 "--evaluate-every",
                                                                 "4",
                                                                 "--evaluation-microbatch",
                                                                 "9",
                                                                 "--hash-every",
                                                                 "3",
                                                                 "--lr",
                                                                 "0.01"});
    if (reference.empty()) reference = bits;
    EXPECT_EQ(bits, reference) << replicas << " replicas";
  }
  // 249 rows to train on: 5 steps an epoch, the last of 49.
  const auto all = steps("n1");
  ASSERT_EQ(all.size(), 10u);
  EXPECT_LT(all[9]["loss"], all[0]["loss"]);
  for (const auto& step : all) {
    const double rows = step["step"] == 5 || step["step"] == 10 ? 49 : 50;
    const double right = static_cast<double>(step["accuracy"]) * rows;
    EXPECT_NEAR(right, std::round(right), 1e-9) << step;
  }
  EXPECT_EQ(all[9]["validation_accuracy"], result("n1")["validation_accuracy"]);
}

TEST_F(MlpEndToEnd, SchedulesScalingAndClippingDependOnNoReplicaCount) {
  std::map<std::string, std::string> seen;  // by bits
  const std::vector<Words> variants = {
      {"--decay", "cosine", "--warmup", "3"},
      {"--decay", "linear"},
      {"--lr-scale", "linear", "--base-batch", "10"},
      {"--lr-scale", "sqrt", "--base-batch", "10"},
      {"--clip-norm", "0.01"},
      {"--optimizer", "sgd", "--clip-norm", "0.5", "--lr", "0.1"},
      {"--precision", "bf16"},
  };
  for (size_t i = 0; i < variants.size(); ++i) {
    std::string reference;
    for (const char* replicas : {"1", "3", "5"}) {
      Words words = {"--data",  numbers_, "--global-batch", "40",    "--microbatch", "9",
                     "--steps", "6",      "--replicas",     replicas};
      words.insert(words.end(), variants[i].begin(), variants[i].end());
      const std::string bits = train("v" + std::to_string(i) + "-" + replicas, words);
      if (reference.empty()) reference = bits;
      EXPECT_EQ(bits, reference) << variants[i][0] << " " << replicas << " replicas";
    }
    EXPECT_TRUE(seen.emplace(reference, variants[i][0]).second) << variants[i][0];
  }
}

TEST_F(MlpEndToEnd, TheLossOfEvaluationIsTheSameForAnyNumberOfReplicas) {
  const std::string held_out = folder_.write("held out.csv", table(122, true));
  double accuracy = -1;
  for (const char* microbatch : {"122", "100", "7"}) {
    std::string loss;
    for (const char* replicas : {"1", "2", "3"}) {
      const std::string name = std::string("e") + microbatch + "-" + replicas;
      train(name, {"--data", classes_, "--validation", held_out, "--steps", "5", "--replicas",
                   replicas, "--evaluation-microbatch", microbatch});
      const auto end = result(name);
      if (loss.empty()) loss = end["validation_loss"].dump();
      EXPECT_EQ(end["validation_loss"].dump(), loss) << name;
      // Right ones over all rows: a mean of means would depend on the last, short microbatch.
      if (accuracy < 0) accuracy = end["validation_accuracy"];
      EXPECT_EQ(end["validation_accuracy"], accuracy) << name;
    }
  }
}

TEST_F(MlpEndToEnd, AKilledReplicaChangesNoBit) {
  const Words words = {"--data",       classes_, "--global-batch", "60",
                       "--microbatch", "4",      "--steps",        "8"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(train("killed", with({"--replicas", "3", "--kill", "1@4"})),
            train("whole", with({"--replicas", "1"})));
}

TEST_F(MlpEndToEnd, AConfigFileIsAsGoodAsWords) {
  const std::string config = folder_.write(
      "a.toml", "model = \"mlp\"\nlayers = 3\nlr = 0.02\nglobal-batch = 30\nsteps = 4\n");
  EXPECT_EQ(train("file", {"--data", numbers_, "--config", config, "--replicas", "3"}),
            train("words", {"--data", numbers_, "--layers", "3", "--lr", "0.02", "--global-batch",
                            "30", "--steps", "4", "--replicas", "2"}));
}

TEST_F(MlpEndToEnd, LearnsWhatALineCanTell) {
  const Ran ran = run({"train", "--model", "mlp", "--layers", "1", "--data", numbers_, "--epochs",
                       "100", "--optimizer", "sgd", "--lr", "0.1", "--seed", "1", "--replicas", "2",
                       "--out", path("learns")});
  ASSERT_EQ(ran.status, 0) << ran.all();
  const auto all = steps("learns");
  EXPECT_LT(all.back()["loss"], 1e-4 * static_cast<double>(all.front()["loss"]));
  EXPECT_FALSE(all.back().contains("accuracy"));
  EXPECT_TRUE(result("learns")["accuracy"].is_null());
}

TEST_F(MlpEndToEnd, TheFirstLinesSayWhatIsTrained) {
  const Ran ran = run(train_words(
      "says", {"--data", classes_, "--steps", "2", "--replicas", "2", "--validation", "0.1"}));
  EXPECT_THAT(ran.out, HasSubstr("linear layers, 3 - 16 - 3, classification"));
  EXPECT_THAT(ran.out, HasSubstr("311 rows of 3 numbers, with header; target 'y': 3 classes; 280 "
                                 "rows to train on, 31 held out"));
  EXPECT_THAT(ran.out, HasSubstr("(accuracy "));
  EXPECT_THAT(ran.out, HasSubstr("samples/s"));
}

TEST_F(MlpEndToEnd, VerifyConfirmsARun) {
  train("run", {"--data", classes_, "--steps", "4", "--replicas", "3"});
  const Ran ran = run({"verify", path("run"), "--steps", "1..4", "--replicas", "1,2"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("verdict: same bits"));
}

}  // namespace
}  // namespace lockstep
