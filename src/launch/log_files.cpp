#include "src/launch/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"

namespace lockstep::launch {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string_view problem) {
  throw Error(ErrorCode::kEnvironment,
              fmt::format("cannot keep what the replicas print in {} (--log-dir): {}.",
                          base::quote_path(path), problem));
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (std::filesystem::is_directory(folder)) return;
  refuse(folder, error ? error.message() : "it is no folder");
}

}  // namespace

LogFiles::LogFiles(const std::string& folder, uint32_t replica_count) {
  make_folder(folder);
  files_.resize(replica_count);
  for (uint32_t rank = 0; rank < replica_count; ++rank) {
    const std::string path = fmt::format("{}/rank-{}", folder, rank);
    files_[rank] = {open_file(path + ".out"), open_file(path + ".err")};
  }
}

LogFiles::File LogFiles::open_file(const std::string& path) {
  // A pipe would block the launcher, or end it, as soon as nobody reads.
  const auto status = base::file_status(path);
  if (status && status->kind != base::FileKind::kRegular &&
      status->kind != base::FileKind::kCharacterDevice) {
    refuse(path, fmt::format("it is {}", base::describe(status->kind)));
  }
  exchange::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666));
  if (!file) refuse(path, std::strerror(errno));
  return {path, std::move(file)};
}

void LogFiles::append(uint32_t rank, bool is_stderr, std::string_view bytes) {
  if (files_.empty()) return;
  File& file = files_[rank][is_stderr ? 1 : 0];
  while (file.descriptor && !bytes.empty()) {
    const ssize_t written = ::write(file.descriptor.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      if (!has_failed_) {
        error_ = fmt::format("cannot write to {}: {}; what comes after is lost",
                             base::quote_path(file.path), std::strerror(errno));
      }
      has_failed_ = true;
      file.descriptor.reset();
    }
  }
}

std::optional<std::string> LogFiles::take_error() { return std::exchange(error_, std::nullopt); }

}  // namespace lockstep::launch
