#include "src/train/preparation.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/temp_folder.h"
#include "src/train/gzip_test_support.h"
#include "src/train/train_command_line.h"

namespace lockstep::train {
namespace {

using namespace std::string_literals;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Words = std::vector<std::string>;

// A made-up machine and a text of 1001 bytes on it.
class Machine {
 public:
  Machine() {
    affinity("0-3");
    memory_mib(4096);
    text(1001);
  }
  void affinity(const std::string& list) {
    folder_.write("root/proc/self/status", "Cpus_allowed_list:\t" + list + "\n");
  }
  void memory_mib(uint64_t mib) {
    folder_.write("root/proc/meminfo", "MemAvailable: " + std::to_string(mib * 1024) + " kB\n");
  }
  void quota(const std::string& limits) {
    folder_.write("root/proc/self/cgroup", "0::/me\n");
    folder_.write("root/proc/self/mountinfo",
                  "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    folder_.write("root/sys/fs/cgroup/me/cpu.max", limits + "\n");
  }
  void text(size_t size) { data_ = folder_.write("text.txt", std::string(size, 'a')); }
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string write(const std::string& name, const std::string& bytes) const {
    return folder_.write(name, bytes);
  }

  PreparedTraining prepare(Words words) const {
    words.insert(words.end(), {"--layers", "1", "--heads", "1", "--width", "8", "--context", "10"});
    if (std::find(words.begin(), words.end(), "--data") == words.end()) {
      words.insert(words.end(), {"--data", data_});
    }
    return prepare_words(words);
  }
  PreparedTraining prepare_words(const Words& words) const {
    return prepare_training(parse_train_arguments(words), folder_.path("root"));
  }
  std::string refusal(const Words& words, ErrorCode code = ErrorCode::kUsage) const {
    try {
      prepare(words);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "";
  }

 private:
  base::TempFolder folder_;
  std::string data_;
};

TEST(Preparation, TakesAReplicaPerCore) {
  const Machine machine;
  const PreparedTraining training = machine.prepare({});
  EXPECT_EQ(training.options.replicas, 4u);
  EXPECT_THAT(training.options.replica_reason, HasSubstr("4 physical cores in the affinity mask"));
  EXPECT_THAT(training.warnings, IsEmpty());
  EXPECT_EQ(training.step_count, 200u);
  EXPECT_EQ(training.steps_per_epoch, 7u);  // 100 sequences, 16 a step
  EXPECT_THAT(training.length_note, HasSubstr("default"));
  EXPECT_THAT(training.data_summary, HasSubstr("100 sequences to train on"));
}

TEST(Preparation, ThreadsShareTheCores) {
  const Machine machine;
  const PreparedTraining training = machine.prepare({"--threads", "3"});
  EXPECT_EQ(training.options.replicas, 1u);
  EXPECT_THAT(training.options.replica_reason, HasSubstr("3 threads each"));
}

TEST(Preparation, FollowsTheCpuQuotaRoundedDown) {
  Machine machine;
  machine.quota("250000 100000");
  const PreparedTraining training = machine.prepare({});
  EXPECT_EQ(training.options.replicas, 2u);
  EXPECT_THAT(training.options.replica_reason, HasSubstr("2.5"));
  machine.quota("50000 100000");
  EXPECT_EQ(machine.prepare({}).options.replicas, 1u);
}

TEST(Preparation, TakesNoMoreReplicasThanMicrobatches) {
  const Machine machine;
  const PreparedTraining training = machine.prepare({"--global-batch", "5", "--microbatch", "2"});
  EXPECT_EQ(training.options.replicas, 3u);
  EXPECT_EQ(training.options.replica_reason, "3 microbatches in a step");
}

TEST(Preparation, TakesNoMoreReplicasThanMemoryHolds) {
  Machine machine;
  machine.memory_mib(400);  // a replica takes somewhat more than 150 MiB
  const PreparedTraining training = machine.prepare({});
  EXPECT_EQ(training.options.replicas, 2u);
  EXPECT_THAT(training.options.replica_reason, HasSubstr("each needs about 150"));
  machine.memory_mib(10);
  EXPECT_EQ(machine.prepare({}).options.replicas, 1u);  // one is tried, with a warning
  EXPECT_THAT(machine.prepare({}).warnings, Contains(HasSubstr("may need about 150")));
}

TEST(Preparation, DialsTakeTheReplicasOfTheCores) {
  const Machine machine;
  const PreparedTraining training = machine.prepare({"--per-replica", "2", "--accumulate", "3"});
  EXPECT_EQ(training.options.replicas, 4u);
  EXPECT_EQ(training.options.global_batch, 24u);
}

TEST(Preparation, WarnsWhereThreadsExceedCores) {
  const Machine machine;
  EXPECT_THAT(machine.prepare({"--replicas", "3", "--threads", "2"}).warnings,
              Contains(HasSubstr("3 replicas x 2 threads = 6 threads on 4 cores")));
  EXPECT_THAT(machine.prepare({"--replicas", "4"}).warnings, IsEmpty());
}

TEST(Preparation, EveryReplicaHasItsOwnRowsInMemory) {
  Machine machine;
  // 2 replicas of somewhat more than 150 MiB, but for 20 MiB of images in each.
  machine.memory_mib(330);
  const std::string size = "\0\0\x50\0"s;  // 20480
  const auto images = machine.write(
      "images.gz", gzip("\0\0\x08\x02"s + size + "\0\0\x04\0"s + std::string(20 << 20, '\0')));
  const auto labels =
      machine.write("labels.gz", gzip("\0\0\x08\x01"s + size + std::string(20480, '\1')));
  const auto rows = machine.write("small.csv", "1,a\n2,b\n");
  const auto replicas = [&](const Words& data) {
    Words words = {"--model", "mlp", "--width", "8", "--global-batch", "64"};
    words.insert(words.end(), data.begin(), data.end());
    return machine.prepare_words(words).options.replicas;
  };
  EXPECT_EQ(replicas({"--data", rows}), 2u);
  EXPECT_EQ(replicas({"--data", images, labels}), 1u);
  // Rows that are held out lie in the same table.
  machine.memory_mib(370);
  EXPECT_EQ(replicas({"--data", images, labels}), 2u);
  EXPECT_EQ(replicas({"--data", images, labels, "--validation", "0.5"}), 2u);
}

TEST(Preparation, WarnsAboutWhatIsProbablyNotMeant) {
  const Machine machine;
  EXPECT_THAT(machine.prepare({"--global-batch", "101", "--replicas", "1"}).warnings,
              Contains(HasSubstr("takes all 100 samples")));
  EXPECT_THAT(machine.prepare({"--warmup", "5", "--steps", "5"}).warnings,
              Contains(HasSubstr("--warmup 5 does not end within the 5 steps")));
  EXPECT_THAT(machine.prepare({"--replicas", "2", "--steps", "5", "--kill", "1@6"}).warnings,
              Contains(HasSubstr("after the last step, 5")));
  EXPECT_THAT(
      machine.prepare({"--replicas", "2", "--kill", "1@1", "--kill", "0@18446744073709551615"})
          .warnings,
      Contains(HasSubstr("kill every replica")));
}

TEST(Preparation, RefusesWhatDoesNotFitIntoMemory) {
  Machine machine;
  machine.memory_mib(64);
  const std::string message = machine.refusal({"--width", "4096", "--replicas", "2"});
  EXPECT_EQ(message, "") << "the later --width wins";
  const std::string data = machine.write("t.txt", std::string(1000, 'b'));
  try {
    prepare_training(parse_train_arguments(
                         {"--data", data, "--context", "8", "--width", "4096", "--heads", "1"}),
                     machine.path("root"));
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("do not fit"));
    EXPECT_THAT(error.what(), HasSubstr("smaller model or fewer replicas"));
  }
}

TEST(Preparation, RefusesMoreMicrobatchesThanAStepMayHave) {
  Machine machine;
  machine.text(800'001);
  EXPECT_THAT(machine.refusal({"--global-batch", "70000"}),
              HasSubstr("more than 65535: take larger microbatches"));
  EXPECT_EQ(machine.refusal({"--global-batch", "70000", "--microbatch", "2"}), "");
}

TEST(Preparation, RefusesDataThatCannotBeUsed) {
  const Machine machine;
  const auto with = [&](const std::string& path) {
    return machine.refusal({"--data", path}, ErrorCode::kInput);
  };
  EXPECT_THAT(with(machine.path("none.txt")), HasSubstr("none.txt"));
  EXPECT_THAT(with(machine.write("empty.txt", "")), HasSubstr("empty"));
  EXPECT_THAT(with(machine.write("short.txt", "abc")), HasSubstr("3"));
  EXPECT_THAT(with(machine.write("odd.bin", std::string(101, 'x'))), HasSubstr("101"));
}

TEST(Preparation, VocabularyFollowsTheData) {
  const Machine machine;
  EXPECT_EQ(machine.prepare({}).options.gpt.vocabulary, 256u);
  std::string tokens;
  for (int i = 0; i < 50; ++i) tokens += std::string("\x40\x9c", 2);  // 40000, as uint16
  const std::string bin = machine.write("a.bin", tokens);
  EXPECT_EQ(machine.prepare({"--data", bin}).options.gpt.vocabulary, 40'000u / 64 * 64 + 64);
  EXPECT_THAT(machine.refusal({"--data", bin, "--vocabulary", "300"}, ErrorCode::kInput),
              HasSubstr("40000"));
}

TEST(Preparation, ChoosesASeedOnceAndSaysSo) {
  const Machine machine;
  const PreparedTraining one = machine.prepare({});
  const PreparedTraining other = machine.prepare({});
  EXPECT_TRUE(one.options.seed_was_chosen);
  EXPECT_NE(one.options.seed, other.options.seed);
  EXPECT_FALSE(machine.prepare({"--seed", "0"}).options.seed_was_chosen);
}

TEST(Preparation, EpochsGiveTheSteps) {
  const Machine machine;
  EXPECT_EQ(machine.prepare({"--epochs", "2"}).step_count, 14u);
  EXPECT_EQ(machine.prepare({"--epochs", "2", "--steps", "3"}).step_count, 3u);
  EXPECT_THAT(machine.prepare({"--epochs", "2"}).length_note, IsEmpty());
}

nlohmann::json recipe(const Machine& machine, Words words) {
  words.insert(words.end(), {"--seed", "3"});
  return nlohmann::json::parse(machine.prepare(words).recipe);
}

TEST(Recipe, HoldsWhatTheBitsDependOn) {
  const Machine machine;
  const auto base = recipe(machine, {});
  const std::vector<Words> changes = {
      {"--dropout", "0.1"},
      {"--global-batch", "8"},
      {"--microbatch", "2"},
      {"--threads", "2"},
      {"--precision", "bf16"},
      {"--lr", "1"},
      {"--weight-decay", "1"},
      {"--clip-norm", "1"},
      {"--optimizer", "sgd"},
      {"--steps", "7"},
      {"--epochs", "1"},
      {"--warmup", "2"},
      {"--decay", "cosine"},
      {"--averaging", "off"},
      {"--validation", "0.2"},
      {"--vocabulary", "257"},
      {"--lr-scale", "linear", "--base-batch", "4"},
  };
  std::set<std::string> seen = {base.dump()};
  for (const Words& change : changes) {
    EXPECT_TRUE(seen.insert(recipe(machine, change).dump()).second) << change.front();
  }
  EXPECT_EQ(base["model"]["layers"], 1);
  EXPECT_EQ(base["data"]["tokens"], 1001);
  EXPECT_EQ(base["data"]["sequences"], 100);
  EXPECT_TRUE(base["validation"].is_null());
  EXPECT_EQ(base["seed"], 3);
  EXPECT_TRUE(base["environment"].contains("MKL_CBWR"));
  EXPECT_EQ(base["environment"]["OMP_NUM_THREADS"], "1");
}

TEST(Recipe, HoldsNeitherReplicasNorPathsNorDrills) {
  const Machine machine;
  const std::string base = recipe(machine, {"--replicas", "1"}).dump();
  EXPECT_EQ(base.find(machine.path("")), std::string::npos);
  EXPECT_EQ(base.find("replica"), std::string::npos);
  const std::string copy = machine.write("another name.txt", std::string(1001, 'a'));
  for (const Words& words :
       {Words{"--replicas", "4"}, Words{"--data", copy}, Words{"--out", "elsewhere"},
        Words{"--kill", "0@1"}, Words{"--audit", "1"}, Words{"--hash-every", "1"},
        Words{"--progress", "none"}, Words{"--sample", "3"}, Words{"--bucket-bytes", "64"},
        Words{"--shuffle-claims", "9"}, Words{"--per-replica", "4", "--replicas", "4"},
        Words{"--lr-scale", "linear", "--base-batch", "16"}}) {
    EXPECT_EQ(recipe(machine, words).dump(), base) << words.front();
  }
}

TEST(Recipe, HoldsTheDataByContent) {
  const Machine machine;
  const std::string other = machine.write("b.txt", std::string(1000, 'a') + "b");
  EXPECT_NE(recipe(machine, {})["data"]["content_hash"],
            recipe(machine, {"--data", other})["data"]["content_hash"]);
}

TEST(Recipe, HoldsVariablesThatSteerKernels) {
  const Machine machine;
  ::setenv("ATEN_CPU_CAPABILITY", "default", 1);
  ::setenv("HOME_MADE", "1", 1);
  const auto with = recipe(machine, {});
  ::unsetenv("ATEN_CPU_CAPABILITY");
  ::unsetenv("HOME_MADE");
  EXPECT_EQ(with["environment"]["ATEN_CPU_CAPABILITY"], "default");
  EXPECT_FALSE(with["environment"].contains("HOME_MADE"));
  EXPECT_FALSE(recipe(machine, {})["environment"].contains("ATEN_CPU_CAPABILITY"));
}

std::string out_refusal(const std::string& out, ErrorCode code) {
  try {
    prepare_out_folder(out, "gpt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("--out"), HasSubstr("Choose a place")));
    return error.what();
  }
  return "";
}

TEST(OutFolder, IsMadeWithItsParents) {
  const base::TempFolder folder;
  const std::string path = folder.path("ein Ordner/für\nalles");
  const OutFolder out = prepare_out_folder(path, "gpt");
  EXPECT_EQ(out.path, path);
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(OutFolder, IsNewWhereNoneIsNamed) {
  const base::TempFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const OutFolder one = prepare_out_folder("", "gpt");
  const OutFolder other = prepare_out_folder("", "gpt");
  EXPECT_TRUE(std::regex_match(one.path, std::regex("runs/gpt-\\d{8}-\\d{6}"))) << one.path;
  EXPECT_NE(one.path, other.path);
  EXPECT_TRUE(std::filesystem::is_directory(other.path));
  std::filesystem::current_path(before);
}

TEST(OutFolder, IsRefusedWhereARunIs) {
  const base::TempFolder folder;
  folder.write("run/metrics.jsonl", "{}\n");
  EXPECT_THAT(out_refusal(folder.path("run"), ErrorCode::kUsage), HasSubstr("holds a run already"));
  folder.write("empty/metrics.jsonl", "");
  EXPECT_EQ(out_refusal(folder.path("empty"), ErrorCode::kUsage), "");
}

TEST(OutFolder, IsRefusedWhileAnotherRunHasIt) {
  const base::TempFolder folder;
  {
    const OutFolder first = prepare_out_folder(folder.path("run"), "gpt");
    EXPECT_THAT(out_refusal(folder.path("run"), ErrorCode::kUsage), HasSubstr("another run"));
  }
  EXPECT_EQ(out_refusal(folder.path("run"), ErrorCode::kUsage), "");
}

TEST(OutFolder, IsRefusedWhereNoFolderCanBe) {
  const base::TempFolder folder;
  const std::string file = folder.write("file", "x");
  EXPECT_THAT(out_refusal(file, ErrorCode::kInput), HasSubstr("file"));
  EXPECT_THAT(out_refusal(file + "/below", ErrorCode::kInput), HasSubstr("file/below"));
  EXPECT_THAT(out_refusal("/proc/nope", ErrorCode::kInput), HasSubstr("/proc/nope"));
}

TEST(OutFolder, IsRefusedWhereNothingCanBeWritten) {
  const base::TempFolder folder;
  std::filesystem::create_directory(folder.path("locked"));
  ::chmod(folder.path("locked").c_str(), 0555);
  const base::WithoutRoot nobody;
  EXPECT_THAT(out_refusal(folder.path("locked"), ErrorCode::kInput),
              HasSubstr("cannot be written"));
  EXPECT_THAT(out_refusal(folder.path("locked/new"), ErrorCode::kInput), HasSubstr("cannot make"));
}

}  // namespace
}  // namespace lockstep::train
