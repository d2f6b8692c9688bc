#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/exchange/shared_memory.h"

namespace lockstep::launch {

/// What each replica prints, byte for byte, in files of its own: FOLDER/rank-R.out and
/// FOLDER/rank-R.err. Bytes are appended: what an earlier process of that rank, or an earlier run,
/// has written stays. A file that cannot be written to any more loses what comes after, and nothing
/// else happens to the run.
class LogFiles {
 public:
  LogFiles() = default;  // keeps nothing

  /// Makes the folder, with those above it, and opens all files. Throws Error(kEnvironment).
  LogFiles(const std::string& folder, uint32_t replica_count);

  void append(uint32_t rank, bool is_stderr, std::string_view bytes);

  /// The first error of a write, once.
  std::optional<std::string> take_error();

 private:
  struct File {
    std::string path;
    exchange::Descriptor descriptor;  // empty: a write has failed
  };

  static File open_file(const std::string& path);

  std::vector<std::array<File, 2>> files_;  // [rank][is_stderr]
  std::optional<std::string> error_;
  bool has_failed_ = false;
};

}  // namespace lockstep::launch
