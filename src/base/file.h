#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/quote_path.h"

// Files as lockstep uses them. Paths are bytes in any encoding and never pass through a shell.
// What cannot be read is Error(kInput), what cannot be written or fails on the way is
// Error(kEnvironment); both name the path and the system's reason.

namespace lockstep::base {

enum class FileKind {
  kRegular,
  kFolder,
  kFifo,
  kCharacterDevice,
  kBlockDevice,
  kSocket,
  kLink,
  kOther
};

/// "a folder", "a named pipe (FIFO)": with its article, for messages.
std::string_view describe(FileKind kind);

struct FileStatus {
  FileKind kind = FileKind::kOther;
  uint64_t size_bytes = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
};

/// Follows links and opens nothing, so a FIFO cannot block. Absent when there is nothing at `path`
/// (or a dangling link); Error(kInput) when the system does not let us look.
[[nodiscard]] std::optional<FileStatus> file_status(const std::string& path);

/// The status of a regular file; missing and any other kind are Error(kInput).
FileStatus require_regular_file(const std::string& path);

/// The whole of a regular file; more than `limit_bytes` is Error(kInput). Reads to the end,
/// whatever size the system gives: files under /proc and /sys have size 0.
std::string read_file(const std::string& path,
                      uint64_t limit_bytes = std::numeric_limits<uint64_t>::max());

/// A regular file mapped read-only; an empty file is an empty span.
/// Danger: truncating the file while it is mapped ends the process with SIGBUS on the next access.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const uint8_t> bytes() const { return {data_, size_bytes_}; }

 private:
  void unmap() noexcept;

  const uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
};

struct FolderFile {
  std::string path;      // the folder's path as given, '/', relative
  std::string relative;  // without a leading '/'
  FileStatus status;     // of the file itself, links followed
};

struct FolderListing {
  std::vector<FolderFile> files;  // regular files, in byte-wise order of `relative`
  uint64_t folder_links = 0;      // links to folders: not followed
  uint64_t dangling_links = 0;
  uint64_t special_files = 0;  // FIFOs, sockets, devices, and links to them
};

/// All regular files below `folder`, also those that a link in it leads to. The order depends on
/// the names alone, not on the file system. A part that cannot be read is Error(kInput): data must
/// not go missing in silence.
FolderListing list_folder(const std::string& folder);

/// Replaces the file: readers see the old bytes or the new, also after a crash. Writes a temporary
/// file in the same folder, syncs, renames, syncs the folder. Refuses a `path` that is no regular
/// file. On an error nothing has changed at `path`.
void write_file_atomically(const std::string& path, std::string_view bytes);

/// A file that grows line by line. A line is one write, so other readers see whole lines; one that
/// fails half-way (a full disk) is taken back.
class AppendFile {
 public:
  enum class Start {
    kEmpty,  ///< what the file held is dropped
    kKeep,   ///< go on after the last line end; a torn last line of a killed writer is cut off
  };

  AppendFile(std::string path, Start start);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  void append_line(std::string_view line);  // without its '\n'
  void sync();                              // fdatasync: the lines survive a power cut
  void truncate(uint64_t size_bytes);       // to an earlier size
  uint64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }

 private:
  void cut_torn_line();
  void close_file() noexcept;

  std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
};

}  // namespace lockstep::base
