#include "src/base/quote_path.h"

#include <fmt/format.h>

namespace lockstep::base {
namespace {

// The length of the UTF-8 character at the start of `text`, 0 if it is none: RFC 3629, section 4.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned>(static_cast<unsigned char>(text[i])) : 0u;
  };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  if (first < 0xE0) return tail(1) ? 2 : 0;
  if (first < 0xF0) {
    const bool range = (first != 0xE0 || byte(1) >= 0xA0) && (first != 0xED || byte(1) < 0xA0);
    return range && tail(1) && tail(2) ? 3 : 0;
  }
  const bool range = (first != 0xF0 || byte(1) >= 0x90) && (first != 0xF4 || byte(1) < 0x90);
  return range && tail(1) && tail(2) && tail(3) ? 4 : 0;
}

}  // namespace

std::string quote_path(std::string_view path) {
  std::string quoted = "'";
  for (size_t i = 0; i < path.size();) {
    const size_t length = utf8_length(path.substr(i));
    const auto byte = static_cast<unsigned char>(path[i]);
    const bool c1_control =
        length == 2 && byte == 0xC2 && static_cast<unsigned char>(path[i + 1]) < 0xA0;
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
      ++i;
    } else if (c1_control) {
      quoted += fmt::format("\\x{:02x}\\x{:02x}", byte, static_cast<unsigned char>(path[i + 1]));
      i += 2;
    } else {
      quoted += path.substr(i, length);
      i += length;
    }
  }
  return quoted + "'";
}

}  // namespace lockstep::base
