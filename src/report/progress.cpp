#include "src/report/progress.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "src/base/check.h"
#include "src/base/system.h"

namespace lockstep::report {
namespace {

constexpr double kPaceWeightOfOneStep = 0.05;  // the average follows the last 20 steps or so
constexpr std::string_view kEraseToEnd = "\x1b[K";
constexpr uint32_t kMaximumBarWidth = 40;
constexpr uint32_t kMinimumBarWidth = 4;

// NaN and infinity as in our files.
std::string number(double value, std::string_view ordinary) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format(fmt::runtime(ordinary), value);
}

std::string loss_text(double loss) {
  const double size = std::fabs(loss);
  return number(loss, size != 0 && (size < 1e-3 || size >= 1e6) ? "{:.4g}" : "{:.4f}");
}

std::string rate_text(const ProgressState& state) {
  return state.tokens_per_second > 0 ? format_rate(state.tokens_per_second) + " tokens/s"
                                     : format_rate(state.samples_per_second) + " samples/s";
}

std::string steps_text(const ProgressState& state) {
  return state.total_steps == 0 ? fmt::format("{}", state.step)
                                : fmt::format("{}/{}", state.step, state.total_steps);
}

std::string bar(double share, uint32_t width) {
  const uint32_t inside = width - 2;
  const auto full = static_cast<uint32_t>(std::clamp(share, 0.0, 1.0) * inside);
  std::string text = "[" + std::string(full, '=');
  if (full < inside) text += ">" + std::string(inside - full - 1, ' ');
  return text + "]";
}

}  // namespace

std::optional<ProgressMode> parse_progress_mode(std::string_view word) {
  if (word == "auto") return ProgressMode::kAuto;
  if (word == "bar") return ProgressMode::kBar;
  if (word == "plain") return ProgressMode::kPlain;
  if (word == "none") return ProgressMode::kNone;
  return std::nullopt;
}

ProgressMode resolve_progress_mode(ProgressMode mode, bool is_terminal, std::string_view term) {
  if (mode != ProgressMode::kAuto) return mode;
  return is_terminal && !term.empty() && term != "dumb" ? ProgressMode::kBar : ProgressMode::kPlain;
}

Progress::Progress(const ProgressOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.mode != ProgressMode::kAuto, "kAuto", "a resolved mode");
}

std::optional<std::string> Progress::line(const ProgressState& state, double now_seconds) {
  if (options_.mode == ProgressMode::kNone) return std::nullopt;
  update_pace(state.step, now_seconds);
  if (!is_due(state, now_seconds)) return std::nullopt;
  last_shown_seconds_ = now_seconds;
  if (options_.mode == ProgressMode::kPlain) return plain_text(state) + "\n";
  const bool last = state.step == state.total_steps;
  bar_on_screen_ = !last;
  return fmt::format("\r{}{}{}", bar_text(state), kEraseToEnd, last ? "\n" : "");
}

std::string Progress::make_room() {
  if (!bar_on_screen_) return "";
  bar_on_screen_ = false;
  last_shown_seconds_.reset();  // the next step draws it again
  return fmt::format("\r{}", kEraseToEnd);
}

bool Progress::is_due(const ProgressState& state, double now_seconds) const {
  if (!last_shown_seconds_ || state.step == state.total_steps) return true;
  const double interval = options_.mode == ProgressMode::kBar ? options_.bar_interval_seconds
                                                              : options_.plain_interval_seconds;
  return now_seconds - *last_shown_seconds_ >= interval;
}

// An exponential average, divided by the sum of its weights so that the first steps count in full.
void Progress::update_pace(uint64_t step, double now_seconds) {
  if (last_step_seconds_ && step > last_step_) {
    const auto steps = static_cast<double>(step - last_step_);
    const double pace = std::max(0.0, now_seconds - *last_step_seconds_) / steps;
    const double kept = std::pow(1 - kPaceWeightOfOneStep, steps);
    pace_sum_ = kept * pace_sum_ + (1 - kept) * pace;
    pace_weight_ = kept * pace_weight_ + (1 - kept);
  }
  last_step_ = step;
  last_step_seconds_ = now_seconds;
}

std::optional<double> Progress::seconds_left(const ProgressState& state) const {
  if (pace_weight_ == 0 || state.total_steps <= state.step) return std::nullopt;
  return pace_sum_ / pace_weight_ * static_cast<double>(state.total_steps - state.step);
}

std::string Progress::plain_text(const ProgressState& state) const {
  std::string text = fmt::format("step {}  loss {}  norm {}  lr {}  {}", steps_text(state),
                                 loss_text(state.loss), number(state.gradient_norm, "{:.3g}"),
                                 number(state.learning_rate, "{:.4g}"), rate_text(state));
  const auto left = seconds_left(state);
  if (left) text += fmt::format("  {} left", base::format_duration(*left));
  return text;
}

// Fields are dropped from the least wanted on until the line fits: first the rate, then the time
// left, then the loss. One column stays free, since many terminals wrap when the last is written.
std::string Progress::bar_text(const ProgressState& state) const {
  const uint32_t width = std::max(1u, (options_.width == 0 ? 80 : options_.width) - 1);
  const std::string steps = "step " + steps_text(state);
  const auto left = seconds_left(state);
  std::vector<std::string> fields = {"loss " + loss_text(state.loss)};  // most wanted first
  if (left) fields.push_back(base::format_duration(*left) + " left");
  fields.push_back(rate_text(state));

  const uint32_t bar_columns = state.total_steps == 0 ? 0 : kMinimumBarWidth + 2;
  const auto needed = [&] {
    size_t columns = steps.size() + bar_columns;
    for (const std::string& field : fields) columns += field.size() + 2;
    return columns;
  };
  while (!fields.empty() && needed() > width) fields.pop_back();
  if (fields.size() == 3) std::swap(fields[1], fields[2]);  // shown: loss, rate, time left

  std::string text = steps;
  if (bar_columns > 0 && needed() <= width) {
    const auto spare = static_cast<uint32_t>(width - needed());
    const double share = static_cast<double>(state.step) / static_cast<double>(state.total_steps);
    text += "  " + bar(share, std::min(kMinimumBarWidth + spare, kMaximumBarWidth));
  }
  for (const std::string& field : fields) text += "  " + field;
  return text.substr(0, width);
}

std::string format_rate(double per_second) {
  if (!(per_second >= 0) || std::isinf(per_second)) return "?";
  constexpr std::array<std::string_view, 5> kFactors = {"", "k", "M", "G", "T"};
  size_t factor = 0;
  while (per_second >= 999.5 && factor + 1 < kFactors.size()) {
    per_second /= 1000;
    ++factor;
  }
  const int decimals = per_second >= 99.95 ? 0 : per_second >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", per_second, decimals, kFactors[factor]);
}

std::string format_learning_rate(double rate) {
  if (!std::isfinite(rate)) return number(rate, "{}");
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), rate);
  LOCKSTEP_CHECK(error == std::errc(), static_cast<int>(error), rate);
  std::string text(buffer.data(), end);
  const size_t exponent = text.find('e');
  if (exponent == std::string::npos) return text;
  // "3e-04" and "1e+20" are written 3e-4 and 1e20.
  size_t digits = exponent + 2;
  while (digits + 1 < text.size() && text[digits] == '0') ++digits;
  return text.substr(0, exponent + 1) + (text[exponent + 1] == '-' ? "-" : "") +
         text.substr(digits);
}

}  // namespace lockstep::report
