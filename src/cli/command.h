#pragma once

#include <exception>
#include <string>
#include <vector>

// One function per command. Each gets the words after its name and returns the exit status; a
// lockstep::Error that it lets through becomes a message and a status in main.cpp.

namespace lockstep::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;         // the run failed, the bits differ
inline constexpr int kWrongUsage = 2;      // or data, or environment, found before anything started
inline constexpr int kBrokenOutput = 141;  // 128 + SIGPIPE: nobody reads what we print

int train_command(const std::vector<std::string>& arguments);
int run_command(const std::vector<std::string>& arguments);
int verify_command(const std::vector<std::string>& arguments);
int compare_command(const std::vector<std::string>& arguments);

/// True where --help or -h is among the words before "--", where another program's begin.
bool asks_for_help(const std::vector<std::string>& arguments);

/// A failure after the start, whose message is already on the screen.
struct Failed : std::exception {
  explicit Failed(int exit_status) : status(exit_status) {}
  int status;
};

}  // namespace lockstep::cli
