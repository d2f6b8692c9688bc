#pragma once

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/base/temp_folder.h"
#include "src/launch/launcher.h"

// What the tests of this folder have in common: runs of lockstep_probe, and how to compare them.

namespace lockstep::promise {

inline const std::vector<uint32_t> kReplicaCounts = {1, 2, 3, 4, 5, 7, 8};

using Lines = std::vector<std::string>;

struct ProbeRun {
  launch::LaunchResult result;
  std::vector<Lines> lines;   // [rank] what must be equal on all ranks and for all runs
  std::vector<Lines> own;     // [rank] the lines after "# "
  std::vector<Lines> errors;  // [rank]
  std::vector<std::string> notices;

  std::string all() const {
    std::string text = "status " + std::to_string(result.exit_status) + "\n";
    text += launch::failure_report(result) + "\n";
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      for (const auto& line : errors[rank]) text += std::to_string(rank) + " err " + line + "\n";
    }
    for (const auto& notice : notices) text += "notice: " + notice + "\n";
    return text;
  }
  /// Own lines of all ranks that start with `word` and a blank, without these.
  Lines own_of(const std::string& word) const {
    Lines found;
    for (const Lines& lines_of_rank : own) {
      for (const auto& line : lines_of_rank) {
        if (line.starts_with(word + " ")) found.push_back(line.substr(word.size() + 1));
      }
    }
    return found;
  }
  std::string error_text(size_t rank) const {
    std::string text;
    for (const auto& line : errors[rank]) text += line + "\n";
    return text;
  }
};

struct RunOptions {
  std::string kill;  // as LOCKSTEP_KILL
  std::chrono::milliseconds timeout{60'000};
};

inline std::string probe_path() {
  const char* folder = ::getenv("LOCKSTEP_TEST_BIN");
  if (folder != nullptr) return std::string(folder) + "/lockstep_probe";
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lockstep_probe";
}

inline ProbeRun run_probe(uint32_t replica_count, const Lines& words,
                          const RunOptions& options = {}) {
  launch::LaunchOptions launch;
  launch.command = {probe_path()};
  launch.command.insert(launch.command.end(), words.begin(), words.end());
  launch.replica_count = replica_count;
  launch.core_count = 2;
  launch.timeout = options.timeout;
  ProbeRun run;
  run.lines.resize(replica_count);
  run.own.resize(replica_count);
  run.errors.resize(replica_count);
  launch.on_line = [&](const launch::OutputLine& line) {
    auto& target = line.is_stderr                ? run.errors[line.rank]
                   : line.text.starts_with("# ") ? run.own[line.rank]
                                                 : run.lines[line.rank];
    target.emplace_back(line.text.starts_with("# ") ? line.text.substr(2) : line.text);
    return true;
  };
  launch.on_notice = [&](std::string_view notice) { run.notices.emplace_back(notice); };
  if (!options.kill.empty()) ::setenv("LOCKSTEP_KILL", options.kill.c_str(), 1);
  run.result = launch::run_group(launch);
  ::unsetenv("LOCKSTEP_KILL");
  return run;
}

/// Empty where the lines are equal; else the first line, and there the first word, that differ.
inline std::string difference(const Lines& expected, const Lines& found) {
  for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const std::string left = i < expected.size() ? expected[i] : "(no more lines)";
    const std::string right = i < found.size() ? found[i] : "(no more lines)";
    if (left == right) continue;
    size_t at = 0;
    while (at < left.size() && at < right.size() && left[at] == right[at]) ++at;
    at = left.find_last_of(' ', at) == std::string::npos ? 0 : left.find_last_of(' ', at);
    return "line " + std::to_string(i) + " (" + left.substr(0, 60) + "...) differs from" +
           left.substr(at, 80) + " to" + right.substr(std::min(at, right.size()), 80);
  }
  return "";
}

/// Every replica of `run` printed what `expected` says, and the run ended well.
inline void expect_same(const Lines& expected, const ProbeRun& run, const std::string& what) {
  EXPECT_EQ(run.result.exit_status, 0) << what << "\n" << run.all();
  for (size_t rank = 0; rank < run.lines.size(); ++rank) {
    EXPECT_EQ(difference(expected, run.lines[rank]), "") << what << ", rank " << rank;
  }
}

/// What one replica prints: the reference.
inline Lines alone(const Lines& words) {
  const ProbeRun run = run_probe(1, words);
  EXPECT_EQ(run.result.exit_status, 0) << run.all();
  return run.lines[0];
}

inline Lines joined(Lines words, const Lines& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace lockstep::promise
