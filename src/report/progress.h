#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// What a run says while it goes on. Nothing here writes: the caller does, to where it wants.

namespace lockstep::report {

enum class ProgressMode {
  kAuto,   ///< bar on a terminal, else plain
  kBar,    ///< one line that is drawn again and again
  kPlain,  ///< a line now and then
  kNone,
};

/// From the value of --progress; absent for any other word.
[[nodiscard]] std::optional<ProgressMode> parse_progress_mode(std::string_view word);

/// Replaces kAuto. `term` is the variable TERM ("" when not set): "dumb" cannot redraw a line.
ProgressMode resolve_progress_mode(ProgressMode mode, bool is_terminal, std::string_view term);

struct ProgressState {
  uint64_t step = 0;         // done so far; the first is 1
  uint64_t total_steps = 0;  // 0: not known
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double samples_per_second = 0;
  double tokens_per_second = 0;  // 0: samples are shown instead
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::kPlain;  // not kAuto
  uint32_t width = 80;                       // columns, for the bar; 0 is taken as 80
  double bar_interval_seconds = 0.1;
  double plain_interval_seconds = 2;
};

/// Decides when something is shown and what. Times are seconds of any clock that never goes back.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);

  /// To be called after every step. What is to be written, as it is ("\n" at the end of a plain
  /// line, "\r" and erase-line in a bar), or nothing. The first and the last step are always shown.
  [[nodiscard]] std::optional<std::string> line(const ProgressState& state, double now_seconds);

  /// To be written before any other line, so that it does not run into the bar; "" if not needed.
  [[nodiscard]] std::string make_room();

  void set_width(uint32_t columns) { options_.width = columns; }

 private:
  bool is_due(const ProgressState& state, double now_seconds) const;
  void update_pace(uint64_t step, double now_seconds);
  std::optional<double> seconds_left(const ProgressState& state) const;
  std::string plain_text(const ProgressState& state) const;
  std::string bar_text(const ProgressState& state) const;

  ProgressOptions options_;
  bool bar_on_screen_ = false;
  std::optional<double> last_shown_seconds_;
  std::optional<double> last_step_seconds_;  // when last_step_ was done
  uint64_t last_step_ = 0;
  double pace_sum_ = 0;     // seconds per step, newer ones weigh more
  double pace_weight_ = 0;  // the sum of the weights, below 1
};

/// Three digits and a factor: "41.2k", "812", "1.50M".
std::string format_rate(double per_second);

/// A learning rate as people write it: "3e-4", "0.001".
std::string format_learning_rate(double rate);

}  // namespace lockstep::report
