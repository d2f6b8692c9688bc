// lockstep train, verify and compare with real replicas, tiny.

#include <fcntl.h>
#include <signal.h>

#include <gmock/gmock.h>

#include "tests/end_to_end.h"

namespace lockstep {
namespace {

using launch::Program;
using testing::HasSubstr;
using testing::Not;

std::string text_of(size_t size) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < size) {
    state = state * 1664525u + 1013904223u;
    text += "the sum of " + std::to_string(state >> 24) + " parts;\n";
  }
  text.resize(size);
  return text;
}

class TrainEndToEnd : public EndToEnd {
 protected:
  TrainEndToEnd() { text_ = folder_.write("ein Text.txt", text_of(6000)); }

  Words recipe() const override {
    return {"--data",    text_, "--layers",  "2",   "--heads", "2", "--width",    "32",
            "--context", "32",  "--dropout", "0.1", "--seed",  "7", "--progress", "none"};
  }

  // The same bits by 1 and by 3 replicas, and other bits than `other`; returns the former.
  std::string expect_same_bits(const std::string& name, Words words) const {
    words.insert(words.end(), {"--global-batch", "6", "--steps", "3"});
    std::map<int, std::string> bits;
    for (const int replicas : {1, 3}) {
      Words all = words;
      all.insert(all.end(), {"--replicas", std::to_string(replicas)});
      bits[replicas] = train(name + std::to_string(replicas), all);
    }
    EXPECT_EQ(bits[1], bits[3]) << name;
    return bits[1];
  }

  std::string text_;
};

TEST_F(TrainEndToEnd, SameBitsForAnyNumberOfReplicas) {
  std::string reference;
  for (const char* replicas : {"1", "2", "3", "4", "5", "7", "8"}) {
    const std::string bits =
        train(std::string("n") + replicas,
              {"--global-batch", "11", "--microbatch", "2", "--steps", "4", "--replicas", replicas,
               "--validation", "0.1", "--evaluate-every", "2", "--hash-every", "3"});
    if (reference.empty()) reference = bits;
    EXPECT_EQ(bits, reference) << replicas << " replicas";
  }
  const auto all = steps("n1");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_FALSE(all[0].contains("validation_loss"));
  EXPECT_TRUE(all[1].contains("validation_loss"));
  EXPECT_TRUE(all[2].contains("state_hash"));
  EXPECT_TRUE(all[3].contains("validation_loss"));
  EXPECT_EQ(all[3]["state_hash"], result("n1")["state_hash"]);
  EXPECT_EQ(all[3]["validation_loss"], result("n1")["validation_loss"]);
  EXPECT_LT(all[3]["loss"], all[0]["loss"]);
}

TEST_F(TrainEndToEnd, EpochsEndWithAShortBatch) {
  // 187 sequences: 5 batches of 32 and one of 27, twice.
  std::string reference;
  for (const char* replicas : {"1", "4"}) {
    const std::string bits = train(
        std::string("n") + replicas,
        {"--global-batch", "32", "--microbatch", "8", "--epochs", "2", "--replicas", replicas});
    if (reference.empty()) reference = bits;
    EXPECT_EQ(bits, reference);
  }
  ASSERT_EQ(steps("n1").size(), 12u);
  EXPECT_EQ(steps("n1")[5]["epoch"], 0);
  EXPECT_EQ(steps("n1")[6]["epoch"], 1);
}

TEST_F(TrainEndToEnd, EverySettingOfTheDialsWithOneProductIsOneRun) {
  std::string reference;
  // 8 replicas of 32 each, 4 of 64, 2 of 64 twice, 1 of 32 eight times; and 1 of all.
  const int settings[][3] = {{32, 8, 1}, {64, 4, 1}, {64, 2, 2}, {32, 1, 8}, {256, 1, 1}};
  for (const auto& [per_replica, replicas, accumulate] : settings) {
    const std::string out = std::to_string(per_replica) + "x" + std::to_string(replicas);
    const std::string bits = train(
        out, {"--per-replica", std::to_string(per_replica), "--replicas", std::to_string(replicas),
              "--accumulate", std::to_string(accumulate), "--microbatch", "16", "--steps", "2"});
    EXPECT_EQ(result(out)["global_batch"], 256);
    if (reference.empty()) reference = bits;
    EXPECT_EQ(bits, reference) << out;
  }
}

TEST_F(TrainEndToEnd, KilledReplicasChangeNoBit) {
  const Words words = {"--global-batch", "8", "--steps", "4"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string reference = train("alone", with({"--replicas", "1"}));
  EXPECT_EQ(train("one", with({"--replicas", "3", "--kill", "1@2"})), reference);
  EXPECT_EQ(result("one")["deaths"], 1);
  EXPECT_EQ(train("two", with({"--replicas", "3", "--kill", "0@2", "--kill", "2@4"})), reference);
  EXPECT_EQ(result("two")["deaths"], 2);
  const Ran last =
      run(train_words("all", with({"--replicas", "2", "--kill", "0@2", "--kill", "1@3"})));
  EXPECT_NE(last.status, 0) << last.all();
  EXPECT_EQ(result("all")["complete"], false);
}

TEST_F(TrainEndToEnd, OptionsThatChangeTheBitsChangeThemAlikeForAll) {
  const std::string plain = expect_same_bits("plain", {});
  for (const auto& [name, words] :
       std::map<std::string, Words>{{"bf16", {"--precision", "bf16"}},
                                    {"sgd", {"--optimizer", "sgd", "--lr", "0.1"}},
                                    {"clip", {"--clip-norm", "0.1"}},
                                    {"decay", {"--decay", "cosine", "--warmup", "1"}},
                                    {"dropout", {"--dropout", "0.5"}},
                                    {"threads", {"--threads", "2", "--microbatch", "2"}}}) {
    EXPECT_NE(expect_same_bits(name, words), plain) << name;
  }
}

TEST_F(TrainEndToEnd, WhatIsNoPartOfTheRecipeChangesNoBit) {
  const Words base = {"--global-batch", "6", "--steps", "3", "--replicas", "2"};
  const std::string reference = train("plain", base);
  for (const auto& [name, more] :
       std::map<std::string, Words>{{"buckets", {"--bucket-bytes", "4096"}},
                                    {"claims", {"--shuffle-claims", "3"}},
                                    {"audit", {"--audit", "1"}},
                                    {"sample", {"--sample", "40"}}}) {
    Words words = base;
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(train(name, words), reference) << name;
  }
  EXPECT_EQ(base::read_file(path("sample/sample.txt")).size(), 32u + 40u);
}

TEST_F(TrainEndToEnd, WithoutAveragingTheCopiesSeparate) {
  train("on", {"--global-batch", "8", "--steps", "3", "--replicas", "4"});
  train("off", {"--global-batch", "8", "--steps", "3", "--replicas", "4", "--averaging", "off"});
  for (const auto& step : steps("on")) EXPECT_EQ(step["drift"], 0);
  for (const auto& step : steps("off")) EXPECT_GT(step["drift"], 0);
}

TEST_F(TrainEndToEnd, TokenFilesOfBothKindsAreTheSameTokens) {
  std::string tokens;
  for (int i = 0; i < 1200; ++i) {
    const int token = i * i % 300;
    tokens += {static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
  }
  std::string header(1024, '\0');
  const int32_t words[] = {20240520, 1, 1200};
  std::copy_n(reinterpret_cast<const char*>(words), sizeof words, header.begin());
  const std::string nano = folder_.write("nano.bin", tokens);
  const std::string llm = folder_.write("llm.bin", header + tokens);
  const auto with = [&](const std::string& data, const char* replicas) {
    Words all = {"train",
                 "--data",
                 data,
                 "--layers",
                 "1",
                 "--heads",
                 "1",
                 "--width",
                 "16",
                 "--seed",
                 "1",
                 "--context",
                 "16",
                 "--progress",
                 "none",
                 "--steps",
                 "2",
                 "--global-batch",
                 "4",
                 "--replicas",
                 replicas,
                 "--out",
                 data + replicas};
    const Ran ran = run(all);
    EXPECT_EQ(ran.status, 0) << ran.all();
    return base::read_file(data + replicas + "/metrics.jsonl");
  };
  const std::string reference = with(nano, "1");
  EXPECT_EQ(with(llm, "3"), reference);
  EXPECT_EQ(result("nano.bin1")["recipe"]["model"]["vocabulary"], 320);
}

TEST_F(TrainEndToEnd, ALossThatIsNoNumberEndsTheRunWithAWord) {
  const Ran ran = run(train_words("nan", {"--lr", "1e30", "--optimizer", "sgd", "--global-batch",
                                          "4", "--steps", "50", "--replicas", "2"}));
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("training cannot go on from there"));
  EXPECT_THAT(ran.error, HasSubstr("lower --lr"));
  EXPECT_THAT(ran.error, Not(HasSubstr("\"")));
  EXPECT_THAT(ran.error, Not(HasSubstr("c10")));
  const auto all = steps("nan");
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.back()["loss"].is_string() || all.back()["gradient_norm"].is_string());
  EXPECT_EQ(result("nan")["complete"], false);
}

TEST_F(TrainEndToEnd, VerifyAndCompareAgree) {
  Words words = {"verify",  "--replicas", "1,2,3", "--global-batch", "6",
                 "--steps", "2",          "--out", path("v")};
  const Words common = recipe();
  words.insert(words.end(), common.begin(), common.end());
  const Ran verify = run(words);
  EXPECT_EQ(verify.status, 0) << verify.all();
  EXPECT_THAT(verify.out, HasSubstr("verdict: same bits by 1, 2, 3 replicas, 2 steps"));
  const Ran same = run({"compare", path("v/replicas-1"), path("v/replicas-3")});
  EXPECT_EQ(same.status, 0) << same.all();
  const Ran other = run({"compare", path("v/replicas-1"), path("v/scaled-1")});
  EXPECT_EQ(other.status, 1) << other.all();
  EXPECT_THAT(other.out, HasSubstr("first difference: step 1, loss"));
  EXPECT_THAT(other.out, HasSubstr("first parameter: "));
  EXPECT_THAT(other.out, HasSubstr("global_batch: 6 in A, 2 in B"));
  const Ran again = run({"verify", path("v/replicas-2"), "--replicas", "3", "--steps", "1..2"});
  EXPECT_EQ(again.status, 0) << again.all();
}

TEST_F(TrainEndToEnd, CtrlCLeavesNothingBehind) {
  Program program(lockstep(train_words("run", {"--steps", "100000", "--global-batch", "4",
                                               "--replicas", "3", "--progress", "plain"})),
                  Program::Place::kTerminal);
  ASSERT_TRUE(program.wait_for_output("step 1/")) << program.output();
  ASSERT_EQ(::write(program.output_fd(), "\x03", 1), 1);
  EXPECT_EQ(program.wait(), 130) << program.output();
  EXPECT_TRUE(launch::all_gone());
  EXPECT_EQ(result("run")["complete"], false);
  EXPECT_GE(steps("run").size(), 1u);
}

TEST_F(TrainEndToEnd, AReplicaKilledFromOutsideIsNamedAndCostsNoBit) {
  const std::string reference =
      train("alone", {"--steps", "60", "--global-batch", "4", "--replicas", "1"});
  Program program(lockstep(train_words("killed", {"--steps", "60", "--global-batch", "4",
                                                  "--replicas", "3", "--progress", "plain"})));
  ASSERT_TRUE(program.wait_for_output("step 1/")) << program.error_output();
  pid_t victim = 0;
  for (const pid_t pid : launch::descendants(program.pid(), {})) {
    const std::string environment = base::read_file("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find(std::string("LOCKSTEP_RANK=1") + '\0') != std::string::npos) victim = pid;
  }
  ASSERT_NE(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(program.wait(60), 0) << program.error_output();
  EXPECT_THAT(program.output(), HasSubstr("death        rank 1 "));
  EXPECT_EQ(metrics("killed") + std::string(result("killed")["state_hash"]), reference);
}

}  // namespace
}  // namespace lockstep
