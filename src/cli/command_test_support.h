#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/file.h"
#include "src/base/temp_folder.h"
#include "src/launch/launch_test_support.h"

// What the tests of the command line have in common: bin/lockstep as a process, with fake_worker in
// the place of lockstep_worker.

namespace lockstep::cli {

using Words = std::vector<std::string>;

inline std::string bin_path(const std::string& name) {
  const char* folder = std::getenv("LOCKSTEP_TEST_BIN");
  const std::filesystem::path bin =
      folder != nullptr ? folder : std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return bin / name;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// What a command did.
struct Ran {
  int status = 0;
  std::string out;
  std::string error;
  double seconds = 0;

  std::vector<std::string> out_lines() const { return lines_of(out); }
  std::vector<std::string> error_lines() const { return lines_of(error); }
  std::string all() const {
    return "status " + std::to_string(status) + "\n" + out + "---\n" + error;
  }
};

inline Ran run_program(const Words& command) {
  const auto start = std::chrono::steady_clock::now();
  launch::Program program(command);
  Ran ran;
  ran.status = program.wait();
  ran.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ran.out = program.output();
  ran.error = program.error_output();
  return ran;
}

inline Words lockstep_command(const Words& words) {
  Words command = {bin_path("lockstep")};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

inline Ran lockstep_words(const Words& words) { return run_program(lockstep_command(words)); }

/// A test with a folder, a text to train on and the fake worker.
class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    ::setenv("LOCKSTEP_WORKER", bin_path("fake_worker").c_str(), 1);
    ::unsetenv("LOCKSTEP_FAKE");
    ::setenv("TERM", "xterm", 1);
    text_ = folder_.write("text.txt", std::string(1000, 'x'));
  }

  static void misbehave(const std::string& how) { ::setenv("LOCKSTEP_FAKE", how.c_str(), 1); }

  std::string path(const std::string& name) const { return folder_.path(name); }

  /// The words of a small run to `out` below the folder; later ones win.
  Words train_words(const std::string& out, const Words& more = {}) const {
    Words words = {"train", "--data",  text_,    "--layers",       "1",  "--heads",
                   "1",     "--width", "8",      "--context",      "10", "--seed",
                   "7",     "--steps", "5",      "--global-batch", "8",  "--replicas",
                   "3",     "--out",   path(out)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Ran train(const std::string& out, const Words& more = {}) const {
    return lockstep_words(train_words(out, more));
  }
  std::vector<std::string> metrics(const std::string& out) const {
    return lines_of(base::read_file(path(out) + "/metrics.jsonl"));
  }
  std::string result(const std::string& out) const {
    return base::read_file(path(out) + "/result.json");
  }

  base::TempFolder folder_;
  std::string text_;
};

}  // namespace lockstep::cli
