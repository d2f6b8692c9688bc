#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep::base {

/// For tests: a folder of its own, removed at the end; below the system's temporary folder unless
/// another path is given, which ends like this one as mkdtemp() wants it.
class TempFolder {
 public:
  explicit TempFolder(const std::filesystem::path& pattern =
                          std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX") {
    std::string name = pattern.string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder: " + name);
    ::chmod(name.c_str(), 0755);  // for tests that read as another user
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& relative) const { return path_ + "/" + relative; }

  /// Writes a file, with the folders above it; returns its path.
  std::string write(const std::string& relative, std::string_view bytes) const {
    const std::string full = path(relative);
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream out(full, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw std::runtime_error("cannot write " + full);
    return full;
  }

 private:
  std::string path_;
};

/// For tests of permissions: root may read everything, so root becomes nobody for a while.
class WithoutRoot {
 public:
  WithoutRoot() : was_root_(::geteuid() == 0) {
    if (was_root_ && ::seteuid(65534) != 0) throw std::runtime_error("seteuid(65534) failed");
  }
  ~WithoutRoot() {
    if (was_root_ && ::seteuid(0) != 0) ::abort();
  }
  WithoutRoot(const WithoutRoot&) = delete;
  WithoutRoot& operator=(const WithoutRoot&) = delete;

 private:
  bool was_root_;
};

}  // namespace lockstep::base
