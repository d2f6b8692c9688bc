#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace lockstep::base {

/// The number that the whole of `text` is, whatever the locale; empty for anything before, between
/// or after its digits, for a plus, and for what the type cannot hold. Of floating-point types
/// "inf" and "nan" are numbers too.
template <typename Number>
std::optional<Number> number_from(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace lockstep::base
