#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

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
  explicit InputFile(const char* name) {
    // In memory where there is such a place: thousands of inputs a second.
    const std::filesystem::path parent = std::filesystem::is_directory("/dev/shm")
                                             ? "/dev/shm"
                                             : std::filesystem::temp_directory_path();
    std::string folder = (parent / "lockstep-fuzz-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    folder_ = folder;
    path_ = folder + "/" + name;
  }
  ~InputFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& write(std::string_view bytes) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) std::abort();
    return path_;
  }

 private:
  std::string folder_;
  std::string path_;
};

}  // namespace lockstep::fuzz
