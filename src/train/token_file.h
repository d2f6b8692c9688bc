#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// What the first bytes of a file say. Nothing here reads files or trusts a number in one.

namespace lockstep::train {

/// Where the tokens of a .bin file lie: `count` little-endian numbers of `width_bytes` (2 or 4)
/// from byte `offset_bytes` to the end of the file.
struct TokenFileLayout {
  uint32_t width_bytes = 2;
  uint64_t offset_bytes = 0;
  uint64_t count = 0;
};

inline constexpr uint64_t kTokenHeaderBytes = 1024;

/// Reads the layout of a .bin file of `size_bytes` that starts with `head` (its first
/// kTokenHeaderBytes, or all of it when shorter):
///   llm.c    256 int32 (magic, version, token count, zeros), then the tokens; magic 20240520 with
///            version 1: uint16; magic 20240801 with version 7: uint32. The size must match
///            exactly.
///   nanoGPT  nothing but uint16.
/// Throws Error(kInput), naming `path` and the numbers, for any other file.
TokenFileLayout parse_token_file(std::span<const uint8_t> head, uint64_t size_bytes,
                                 const std::string& path);

/// "a NumPy array", "a zip archive": what the first bytes show the file to be, if they are those of
/// a format that is certainly no text.
[[nodiscard]] std::optional<std::string_view> known_binary_format(std::span<const uint8_t> head);

}  // namespace lockstep::train
