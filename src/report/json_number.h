#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Doubles in JSON, the same in every locale.

namespace lockstep::report {

/// True also for equal NaNs, and false for 0.0 and -0.0.
inline bool same_bits(double left, double right) {
  return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
}

/// The shortest text that reads back as the same double, -0.0 included. JSON has no NaN and no
/// infinity: these become the strings "NaN", "Infinity", "-Infinity" (with their quotes), whatever
/// the sign or payload of the NaN.
std::string json_number(double value);

/// The double that `text` (a number as JSON writes it, or one of the three words without quotes)
/// stands for. Absent for any other text and for numbers beyond the range of doubles.
[[nodiscard]] std::optional<double> parse_json_number(std::string_view text);

/// `text` as a JSON string, with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace lockstep::report
