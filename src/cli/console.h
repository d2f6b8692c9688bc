#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/report/progress.h"

namespace lockstep::cli {

/// Nobody reads our standard output any more.
struct OutputClosed {};

/// The two streams and the progress on them. One bar at most is on the screen, at its bottom.
class Console {
 public:
  explicit Console(report::ProgressMode mode = report::ProgressMode::kNone);

  // All throw OutputClosed, and Error(kEnvironment) where standard output takes no more (a full
  // disk).
  void print(std::string_view line);              // to stdout
  void warn(std::string_view line);               // to stderr, as it is
  void show(const report::ProgressState& state);  // to stdout, when it is due

 private:
  report::Progress progress_;
};

/// Reads --tee; warns where what is not shown is kept nowhere. Throws Error(kUsage).
std::vector<bool> shown_ranks(const std::string& tee, uint32_t replica_count,
                              const std::string& log_folder, Console& console);

/// The standard output's width in columns; 80 where it is no terminal.
uint32_t terminal_width();

}  // namespace lockstep::cli
