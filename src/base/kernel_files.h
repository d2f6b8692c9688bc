#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/number.h"

// Reading the small files below /proc and /sys.

namespace lockstep::base {

inline constexpr uint64_t kSmallFileBytes = uint64_t{1} << 24;
inline constexpr uint32_t kCpuLimit = 1u << 16;  // far above what any kernel supports (8192)

inline std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <typename Number>
std::optional<Number> trimmed_number(std::string_view text) {
  return number_from<Number>(trim(text));
}

// Most of these files exist on some machines only, and some vanish while a container is torn down.
inline std::optional<std::string> read_if_there(const std::string& path) {
  try {
    return read_file(path, kSmallFileBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The value of a line "NAME: VALUE" or "NAME VALUE" in a file of such lines.
inline std::optional<std::string_view> field(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    std::string_view line = lines.substr(0, end);
    lines = end == std::string_view::npos ? std::string_view() : lines.substr(end + 1);
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(':')) return trim(line.substr(1));
    if (line.starts_with(' ')) return trim(line);
  }
  return std::nullopt;
}

}  // namespace lockstep::base
