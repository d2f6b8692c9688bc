#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/exchange/shared_memory.h"
#include "src/launch/launcher.h"
#include "src/launch/process.h"

// What the tests of this folder have in common: runs of launch_probe, inside this process or below
// a launcher of its own.

namespace lockstep::launch {

/// For what happens at once unless something is wrong: long enough for a machine that is busy.
constexpr double kDeadline = 30;

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

inline bool wait_until(const std::function<bool()>& done, double seconds = kDeadline) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

inline pid_t fork_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  return pid;
}

inline void sleep_for_ever() {
  while (true) ::pause();
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

inline bool all_gone() {
  return wait_until([] { return living_descendants().empty(); });
}

/// A path that no other test uses; nothing is there yet.
inline std::string temp_path(const std::string& name) {
  const std::string path = testing::TempDir() + "launch_" + name + "_" + std::to_string(::getpid());
  ::unlink(path.c_str());
  return path;
}

inline size_t open_descriptor_count() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

/// A program below this process, usually `launch_probe launch ...`, with its output on pipes or on
/// a terminal of its own. All that it leaves behind comes to this process.
class Program {
 public:
  enum class Place {
    kHere,
    kOwnGroup,  // a process group of its own
    kTerminal,  // in the foreground of a new terminal; output() has both streams
  };

  explicit Program(const std::vector<std::string>& command, Place place = Place::kHere) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    exchange::Descriptor out;
    exchange::Descriptor error;
    if (place == Place::kTerminal) {
      out = open_terminal();
    } else {
      out = open_pipe(out_);
      error = open_pipe(error_);
    }
    std::vector<char*> arguments;
    for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (place == Place::kOwnGroup) ::setpgid(0, 0);
      if (place == Place::kTerminal) {
        ::setsid();
        ::ioctl(out.get(), TIOCSCTTY, 0);
        ::dup2(out.get(), 0);
      }
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
      ::dup2(out.get(), 1);
      ::dup2(error ? error.get() : out.get(), 2);
      ::execvp(arguments[0], arguments.data());
      ::_exit(120);
    }
    if (place == Place::kOwnGroup) ::setpgid(pid_, pid_);
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
  const std::string& output() const { return output_; }
  const std::string& error_output() const { return error_output_; }

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
        kDeadline);
  }

  /// Reads at least `size` more bytes of standard output, in pieces of at most `piece`; false when
  /// they do not come.
  bool read_output(size_t size, size_t piece = 65536) {
    std::string bytes(piece, '\0');
    const size_t end = output_.size() + size;
    while (output_.size() < end) {
      pollfd ready{out_.get(), POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(kDeadline * 1000)) <= 0) return false;
      const ssize_t got = ::read(out_.get(), bytes.data(), piece);
      if (got <= 0) return false;
      output_.append(bytes, 0, static_cast<size_t>(got));
    }
    return true;
  }

  /// As a shell says it; 200: it did not end within `seconds`.
  int wait(double seconds = kDeadline) {
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

 private:
  static exchange::Descriptor open_pipe(exchange::Descriptor& read_end) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) ::abort();
    read_end = exchange::Descriptor(ends[0]);
    return exchange::Descriptor(ends[1]);
  }

  exchange::Descriptor open_terminal() {
    out_ = exchange::Descriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!out_ || ::grantpt(out_.get()) != 0 || ::unlockpt(out_.get()) != 0) ::abort();
    return exchange::Descriptor(::open(::ptsname(out_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  }

  static void read_some(const exchange::Descriptor& fd, std::string& text) {
    if (!fd) return;
    char bytes[65536];
    pollfd ready{fd.get(), POLLIN, 0};
    for (int i = 0; i < 64 && ::poll(&ready, 1, 0) > 0; ++i) {
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
