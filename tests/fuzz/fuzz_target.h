#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/temp_folder.h"

// A fuzz target is a file that defines these two; driver.cpp, or clang's libFuzzer, calls them.

/// Reads one input. An Error is a fine outcome; everything else that ends it is a finding: another
/// exception, a failed check, a report of a sanitizer, much time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace lockstep::fuzz {

/// Valid inputs to start from.
std::vector<std::string> seeds();

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// For readers of files: one file that each input replaces, gone at the end of the process (a
/// finding leaves it).
class InputFile {
 public:
  explicit InputFile(const char* name) : name_(name) {}

  /// Returns its path.
  std::string write(std::string_view bytes) const { return folder_.write(name_, bytes); }

 private:
  // In memory where there is such a place: thousands of inputs a second. Tests of what runs leave
  // there look for our name, which these are not.
  static std::filesystem::path parent() {
    return std::filesystem::is_directory("/dev/shm") ? "/dev/shm"
                                                     : std::filesystem::temp_directory_path();
  }

  base::TempFolder folder_{parent() / "fuzz-input-XXXXXX"};
  std::string name_;
};

}  // namespace lockstep::fuzz
