#include "src/report/json_number.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include <nlohmann/json.hpp>

#include "src/base/check.h"

namespace lockstep::report {

std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  // Most readers take "-0" for the integer 0 and lose the sign.
  if (value == 0 && std::signbit(value)) return "-0.0";
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc(), static_cast<int>(error), value);
  return {text.data(), end};
}

std::optional<double> parse_json_number(std::string_view text) {
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  // from_chars also takes "inf", "nan(7)", ".5", "5." and "01", which are no JSON.
  const size_t first = text.starts_with('-') ? 1 : 0;
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  if (!digit(first) || (text[first] == '0' && digit(first + 1))) return std::nullopt;
  const size_t point = text.find('.');
  if (point != std::string_view::npos && !digit(point + 1)) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep::report
