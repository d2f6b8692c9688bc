#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "src/exchange/shared_memory.h"
#include "src/launch/launcher.h"
#include "src/launch/process.h"

// What the tests of this folder have in common: runs of launch_probe, inside this process or below
// a launcher of its own.

namespace lockstep::launch {

inline std::string probe_path() {
  const char* folder = std::getenv("LOCKSTEP_TEST_BIN");
  if (folder != nullptr) return std::string(folder) + "/launch_probe";
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "launch_probe";
}

inline std::vector<std::string> probe_replica(const std::vector<std::string>& actions) {
  std::vector<std::string> command = {probe_path(), "replica"};
  command.insert(command.end(), actions.begin(), actions.end());
  return command;
}

/// A run in this process, with all that it said.
struct RecordedRun {
  LaunchResult result;
  std::vector<std::string> lines;  // "0 out text", "1 err text"
  std::vector<std::string> notices;

  bool has_line(const std::string& line) const {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }
  std::string all() const {
    std::string text = failure_report(result) + "\n";
    for (const auto& line : lines) text += line + "\n";
    for (const auto& notice : notices) text += "notice: " + notice + "\n";
    return text;
  }
};

inline RecordedRun run_recorded(LaunchOptions options) {
  RecordedRun run;
  options.on_line = [&](const OutputLine& line) {
    run.lines.push_back(std::to_string(line.rank) + (line.is_stderr ? " err " : " out ") +
                        std::string(line.text));
    return true;
  };
  options.on_notice = [&](std::string_view notice) { run.notices.emplace_back(notice); };
  run.result = run_group(options);
  return run;
}

inline RecordedRun run_probe(uint32_t replica_count, const std::vector<std::string>& actions) {
  LaunchOptions options;
  options.replica_count = replica_count;
  options.command = probe_replica(actions);
  return run_recorded(options);
}

inline std::string shell_quote(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += "'" + word + "' ";
  return text;
}

inline bool wait_until(const std::function<bool()>& done, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

/// Processes below this one that still run, after reaping those that do not.
inline std::vector<pid_t> living_descendants() {
  std::vector<pid_t> living;
  for (const pid_t pid : descendants(::getpid(), {})) {
    const auto status = process_status(pid);
    if (!status) continue;
    if (status->state != 'Z') living.push_back(pid);
    if (status->state == 'Z' && status->parent == ::getpid()) ::waitpid(pid, nullptr, WNOHANG);
  }
  return living;
}

inline size_t open_descriptor_count() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

/// A program below this process, usually `launch_probe launch ...`, with its output on pipes. All
/// that it leaves behind comes to this process.
class Program {
 public:
  enum class Group { kSame, kOwn };

  explicit Program(const std::vector<std::string>& command, Group group = Group::kSame) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    int out[2];
    int error[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(error, O_CLOEXEC) != 0) ::abort();
    std::vector<char*> arguments;
    for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (group == Group::kOwn) ::setpgid(0, 0);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
      ::dup2(out[1], 1);
      ::dup2(error[1], 2);
      ::execvp(arguments[0], arguments.data());
      ::_exit(120);
    }
    if (group == Group::kOwn) ::setpgid(pid_, pid_);
    out_ = exchange::Descriptor(out[0]);
    error_ = exchange::Descriptor(error[0]);
    ::close(out[1]);
    ::close(error[1]);
  }

  ~Program() {
    if (status_ < 0) ::kill(pid_, SIGKILL);
    if (status_ < 0) ::waitpid(pid_, nullptr, 0);
    end_descendants({});
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void close_output() { out_.reset(); }
  int output_fd() const { return out_.get(); }

  /// Reads standard output until `text` has come, `count` times.
  bool wait_for_output(const std::string& text, int count = 1) {
    return wait_until(
        [&] {
          read_some(out_, output_);
          int found = 0;
          for (size_t at = output_.find(text); at != std::string::npos;
               at = output_.find(text, at + 1)) {
            ++found;
          }
          return found >= count;
        },
        30);
  }

  /// As a shell says it; 200: it did not end within `seconds`.
  int wait(double seconds = 30) {
    int status = 0;
    const bool ended = wait_until(
        [&] {
          read_some(out_, output_);
          read_some(error_, error_output_);
          return ::waitpid(pid_, &status, WNOHANG) == pid_;
        },
        seconds);
    if (!ended) return 200;
    status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    read_some(out_, output_);
    read_some(error_, error_output_);
    return status_;
  }

  const std::string& output() const { return output_; }
  const std::string& error_output() const { return error_output_; }

 private:
  static void read_some(const exchange::Descriptor& fd, std::string& text) {
    if (!fd) return;
    char bytes[65536];
    pollfd ready{fd.get(), POLLIN, 0};
    while (::poll(&ready, 1, 0) > 0) {
      const ssize_t size = ::read(fd.get(), bytes, sizeof bytes);
      if (size <= 0) return;
      text.append(bytes, static_cast<size_t>(size));
    }
  }

  pid_t pid_ = -1;
  int status_ = -1;
  exchange::Descriptor out_;
  exchange::Descriptor error_;
  std::string output_;
  std::string error_output_;
};

inline std::vector<std::string> probe_launch(const std::vector<std::string>& options,
                                             const std::vector<std::string>& actions) {
  std::vector<std::string> command = {probe_path(), "launch"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back("--");
  const auto replica = probe_replica(actions);
  command.insert(command.end(), replica.begin(), replica.end());
  return command;
}

}  // namespace lockstep::launch
