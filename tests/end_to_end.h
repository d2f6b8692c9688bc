#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "src/base/temp_folder.h"
#include "src/launch/launch_test_support.h"

// Runs of `lockstep` with real replicas, and what they leave.

namespace lockstep {

using Words = std::vector<std::string>;

class EndToEnd : public testing::Test {
 protected:
  struct Ran {
    int status = 0;
    std::string out;
    std::string error;
    std::string all() const {
      return "status " + std::to_string(status) + "\n" + out + "---\n" + error;
    }
  };

  static Words lockstep(const Words& words) {
    const char* folder = std::getenv("LOCKSTEP_TEST_BIN");
    const std::filesystem::path bin =
        folder != nullptr ? folder : std::filesystem::read_symlink("/proc/self/exe").parent_path();
    Words command = {bin / "lockstep"};
    command.insert(command.end(), words.begin(), words.end());
    return command;
  }

  static Ran run(const Words& words) {
    launch::Program program(lockstep(words));
    Ran ran;
    ran.status = program.wait(60);
    ran.out = program.output();
    ran.error = program.error_output();
    return ran;
  }

  /// The words of every run of this fixture.
  virtual Words recipe() const = 0;

  Words train_words(const std::string& out, const Words& more) const {
    Words words = {"train"};
    for (const Words& part : {recipe(), Words{"--out", path(out)}, more}) {
      words.insert(words.end(), part.begin(), part.end());
    }
    return words;
  }
  // Trains into the folder `out`; returns metrics.jsonl and the state hash.
  std::string train(const std::string& out, const Words& more) const {
    const Ran ran = run(train_words(out, more));
    EXPECT_EQ(ran.status, 0) << ran.all();
    if (ran.status != 0) return "failed: " + out;
    return metrics(out) + std::string(result(out)["state_hash"]);
  }
  std::string metrics(const std::string& out) const {
    return base::read_file(path(out) + "/metrics.jsonl");
  }
  std::vector<nlohmann::json> steps(const std::string& out) const {
    std::vector<nlohmann::json> steps;
    std::istringstream lines(metrics(out));
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line));
    return steps;
  }
  nlohmann::json result(const std::string& out) const {
    return nlohmann::json::parse(base::read_file(path(out) + "/result.json"));
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

  base::TempFolder folder_;
};

}  // namespace lockstep
