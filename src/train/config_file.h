#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

/// One "key = value" of a config file.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;  // several of an array; numbers and booleans as they stand there
  uint64_t line = 0;                // from 1
};

/// Reads the part of TOML 1.0 that options need: keys without sections, strings of one line,
/// numbers, booleans, arrays of these, comments; line ends of Unix and Windows. Throws
/// Error(kInput) with `path` and the line for anything else, a key that comes twice included.
std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path);

}  // namespace lockstep::train
