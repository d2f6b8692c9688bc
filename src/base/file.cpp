#include "src/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"

namespace lockstep::base {
namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

[[noreturn]] void fail_input(std::string_view tried, const std::string& path, int error_number,
                             std::string_view advice) {
  throw Error(ErrorCode::kInput, fmt::format("cannot {} {}: {}. {}", tried, quote_path(path),
                                             reason(error_number), advice));
}

[[noreturn]] void fail_environment(std::string_view tried, const std::string& path,
                                   int error_number) {
  std::string_view advice = "Choose a place that can be written, or change its permissions.";
  if (error_number == ENOSPC || error_number == EDQUOT) {
    advice = "Free some space, or choose another place.";
  } else if (error_number == EIO) {
    advice = "The disk or the network file system reports a fault.";
  } else if (error_number == EMFILE || error_number == ENFILE) {
    advice = "Raise the limit of open files (ulimit -n).";
  } else if (error_number == ENOENT) {
    advice = "Create its folder first.";
  }
  throw Error(ErrorCode::kEnvironment, fmt::format("cannot {} {}: {}. {}", tried, quote_path(path),
                                                   reason(error_number), advice));
}

FileKind kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return FileKind::kRegular;
    case S_IFDIR: return FileKind::kFolder;
    case S_IFIFO: return FileKind::kFifo;
    case S_IFCHR: return FileKind::kCharacterDevice;
    case S_IFBLK: return FileKind::kBlockDevice;
    case S_IFSOCK: return FileKind::kSocket;
    case S_IFLNK: return FileKind::kLink;
    default: return FileKind::kOther;
  }
}

FileStatus status_of(const struct stat& from) {
  FileStatus status;
  status.kind = kind_of(from.st_mode);
  status.size_bytes = static_cast<uint64_t>(from.st_size);
  status.device = static_cast<uint64_t>(from.st_dev);
  status.inode = static_cast<uint64_t>(from.st_ino);
  return status;
}

void check_path(const std::string& path) {
  if (path.empty()) {
    throw Error(ErrorCode::kInput, "a file name is empty. Give the path of a file.");
  }
  if (path.find('\0') != std::string::npos) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("the path {} holds a NUL byte, which no file name can.", quote_path(path)));
  }
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() { reset(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  // 0, or the error number: some file systems report a failed write only here.
  int reset() {
    const int fd = release();
    return fd >= 0 && ::close(fd) != 0 && errno != EINTR ? errno : 0;
  }

 private:
  int fd_;
};

int open_again(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// The status is asked before opening, since opening a device can have effects of its own, and after
// it, since the name may have come to mean something else. O_NONBLOCK: even then a FIFO cannot
// block.
int open_regular(const std::string& path, FileStatus* status) {
  require_regular_file(path);
  OpenFile file(open_again(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    if (errno == EMFILE || errno == ENFILE) fail_environment("open", path, errno);
    fail_input("open", path, errno, "Check its permissions.");
  }
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) fail_environment("look at", path, errno);
  *status = status_of(found);
  if (status->kind != FileKind::kRegular) {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot read {}: it was replaced by {} while being opened. Give a "
                            "regular file.",
                            quote_path(path), describe(status->kind)));
  }
  return file.release();
}

// Writes all; returns 0 or the error number. `written` is what went out before it.
int write_all(int fd, std::string_view bytes, size_t* written) {
  *written = 0;
  while (*written < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + *written, bytes.size() - *written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    *written += static_cast<size_t>(count);
  }
  return 0;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void refuse_unless_regular(std::string_view tried, const std::string& path) {
  check_path(path);
  const auto status = file_status(path);
  if (status && status->kind != FileKind::kRegular) {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot {} {}: it is {}. Give the path of a regular file.", tried,
                            quote_path(path), describe(status->kind)));
  }
}

// A file name of our own, not one made from the target's: that may already be as long as allowed.
std::string temporary_name(const std::string& folder) {
  static std::atomic<uint64_t> counter{0};
  return fmt::format("{}/.lockstep-tmp-{}-{}", folder, ::getpid(), counter.fetch_add(1));
}

void sync_folder(const std::string& folder) {
  OpenFile file(open_again(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (file.get() < 0) fail_environment("open the folder", folder, errno);
  // Some network file systems cannot sync a folder (EINVAL) and need not.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_environment("sync the folder", folder, errno);
  }
}

// The names in one folder, without "." and "..".
std::vector<std::string> names_in(const std::string& folder) {
  struct CloseFolder {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  const std::unique_ptr<DIR, CloseFolder> open(::opendir(folder.c_str()));
  if (!open) {
    fail_input("list the folder", folder, errno, "Check its permissions, or give another folder.");
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(open.get());
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) fail_environment("list the folder", folder, errno);
  return names;
}

// Takes one entry into the listing. True: it is a folder to go down into.
bool add_entry(const std::string& path, const std::string& relative, FolderListing* listing) {
  struct stat own = {};
  if (::lstat(path.c_str(), &own) != 0) {
    if (errno == ENOENT) return false;  // removed since the folder was read
    fail_input("look at", path, errno, "Check the permissions of its folder.");
  }
  if (kind_of(own.st_mode) == FileKind::kFolder) return true;
  const auto status = kind_of(own.st_mode) == FileKind::kLink ? file_status(path) : status_of(own);
  if (!status) {
    ++listing->dangling_links;
  } else if (status->kind == FileKind::kFolder) {
    ++listing->folder_links;
  } else if (status->kind != FileKind::kRegular) {
    ++listing->special_files;
  } else {
    listing->files.push_back({path, relative, *status});
  }
  return false;
}

}  // namespace

std::string_view describe(FileKind kind) {
  switch (kind) {
    case FileKind::kRegular: return "a regular file";
    case FileKind::kFolder: return "a folder";
    case FileKind::kFifo: return "a named pipe (FIFO)";
    case FileKind::kCharacterDevice: return "a character device";
    case FileKind::kBlockDevice: return "a block device";
    case FileKind::kSocket: return "a socket";
    case FileKind::kLink: return "a symbolic link";
    case FileKind::kOther: break;
  }
  return "of an unknown kind";
}

std::optional<FileStatus> file_status(const std::string& path) {
  check_path(path);
  struct stat found = {};
  if (::stat(path.c_str(), &found) == 0) return status_of(found);
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  fail_input("look at", path, errno, "Check the path and the permissions of its folders.");
}

FileStatus require_regular_file(const std::string& path) {
  const auto status = file_status(path);
  if (!status) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("cannot read {}: there is no such file. Check the path.", quote_path(path)));
  }
  if (status->kind != FileKind::kRegular) {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot read {}: it is {}, and a regular file is needed.",
                            quote_path(path), describe(status->kind)));
  }
  return *status;
}

std::string read_file(const std::string& path, uint64_t limit_bytes) {
  FileStatus status;
  const OpenFile file(open_regular(path, &status));
  std::string bytes;
  bytes.resize(static_cast<size_t>(std::min(status.size_bytes, limit_bytes)) + 1);
  size_t filled = 0;
  for (;;) {
    if (filled == bytes.size()) bytes.resize(std::max<size_t>(2 * filled, 4096));
    const ssize_t count = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_environment("read", path, errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
    if (filled > limit_bytes) {
      throw Error(ErrorCode::kInput,
                  fmt::format("cannot read {}: it holds more than {} bytes, the most that is "
                              "expected here. Check that it is the right file.",
                              quote_path(path), limit_bytes));
    }
  }
  bytes.resize(filled);
  return bytes;
}

MappedFile::MappedFile(const std::string& path) {
  FileStatus status;
  const OpenFile file(open_regular(path, &status));
  if (status.size_bytes == 0) return;
  if (status.size_bytes > std::numeric_limits<size_t>::max()) {
    throw Error(ErrorCode::kInput, fmt::format("cannot map {}: {} bytes do not fit into this "
                                               "process.",
                                               quote_path(path), status.size_bytes));
  }
  const auto size = static_cast<size_t>(status.size_bytes);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    const int error_number = errno;
    std::string_view advice = "Is there enough address space (ulimit -v)?";
    if (error_number == ENOMEM) {
      advice =
          "The process may have too many maps (vm.max_map_count; join many files into one) or too "
          "little address space (ulimit -v).";
    } else if (error_number == ENODEV) {
      advice = "Its file system cannot map files; copy it to a disk.";
    }
    throw Error(ErrorCode::kEnvironment,
                fmt::format("cannot map {} ({} bytes): {}. {}", quote_path(path), size,
                            reason(error_number), advice));
  }
  data_ = static_cast<const uint8_t*>(address);
  size_bytes_ = size;
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

FolderListing list_folder(const std::string& folder) {
  const auto status = file_status(folder);
  if (!status || status->kind != FileKind::kFolder) {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot list the folder {}: {}. Check the path.", quote_path(folder),
                            status ? fmt::format("it is {}", describe(status->kind))
                                   : std::string("there is no such folder")));
  }
  const std::string prefix = folder.back() == '/' ? folder : folder + "/";
  FolderListing listing;
  // Links to folders are not followed, so there are no cycles; the system's limit on the length of
  // a path bounds the depth.
  std::vector<std::string> open = {""};  // relative, each with a '/' at its end
  while (!open.empty()) {
    const std::string below = std::move(open.back());
    open.pop_back();
    for (const std::string& name : names_in(prefix + below)) {
      const std::string relative = below + name;
      if (add_entry(prefix + relative, relative, &listing)) open.push_back(relative + "/");
    }
  }
  // std::string compares as unsigned bytes, whatever the locale.
  std::sort(listing.files.begin(), listing.files.end(),
            [](const FolderFile& a, const FolderFile& b) { return a.relative < b.relative; });
  return listing;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  // Renaming over a device or a FIFO would replace it: never /dev/null by a mistaken option.
  refuse_unless_regular("write", path);
  const std::string folder = folder_of(path);
  const std::string temporary = temporary_name(folder);
  OpenFile file(open_again(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
  if (file.get() < 0) fail_environment("create a file beside", path, errno);
  size_t written = 0;
  int error_number = write_all(file.get(), bytes, &written);
  if (error_number == 0 && ::fsync(file.get()) != 0) error_number = errno;
  const int close_error = file.reset();
  if (error_number == 0) error_number = close_error;
  if (error_number == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error_number = errno;
  if (error_number != 0) {
    ::unlink(temporary.c_str());
    fail_environment("write", path, error_number);
  }
  sync_folder(folder);
}

AppendFile::AppendFile(std::string path, Start start) : path_(std::move(path)) {
  refuse_unless_regular("append to", path_);
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_NOCTTY | (start == Start::kEmpty ? O_TRUNC : 0);
  OpenFile file(open_again(path_.c_str(), flags, 0666));
  if (file.get() < 0) fail_environment("open for appending", path_, errno);
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) fail_environment("look at", path_, errno);
  size_bytes_ = static_cast<uint64_t>(found.st_size);
  fd_ = file.release();
  try {
    cut_torn_line();
  } catch (...) {
    close_file();
    throw;
  }
}

AppendFile::~AppendFile() { close_file(); }

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  if (this != &other) {
    close_file();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void AppendFile::append_line(std::string_view line) {
  LOCKSTEP_CHECK(fd_ >= 0, fd_, "an open file");
  LOCKSTEP_CHECK(line.find('\n') == std::string_view::npos, line, "one line");
  std::string bytes(line);
  bytes += '\n';
  size_t written = 0;
  const int error_number = write_all(fd_, bytes, &written);
  if (error_number != 0) {
    // Readers must never meet half a line. If even this fails the torn line stays; kKeep cuts it.
    if (written > 0 && ::ftruncate(fd_, static_cast<off_t>(size_bytes_)) != 0) {
      size_bytes_ += written;
    }
    fail_environment("append to", path_, error_number);
  }
  size_bytes_ += bytes.size();
}

void AppendFile::sync() {
  LOCKSTEP_CHECK(fd_ >= 0, fd_, "an open file");
  if (::fdatasync(fd_) != 0 && errno != EINVAL) fail_environment("sync", path_, errno);
}

void AppendFile::truncate(uint64_t size_bytes) {
  LOCKSTEP_CHECK(fd_ >= 0, fd_, "an open file");
  LOCKSTEP_CHECK(size_bytes <= size_bytes_, size_bytes, size_bytes_);
  if (::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0) {
    fail_environment("shorten", path_, errno);
  }
  size_bytes_ = size_bytes;
}

void AppendFile::cut_torn_line() {
  char block[4096];
  uint64_t end = size_bytes_;
  while (end > 0) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(end, sizeof block));
    ssize_t got = 0;
    do {
      got = ::pread(fd_, block, count, static_cast<off_t>(end - count));
    } while (got < 0 && errno == EINTR);
    if (got < 0) fail_environment("read", path_, errno);
    const size_t newline = std::string_view(block, static_cast<size_t>(got)).rfind('\n');
    if (newline != std::string_view::npos) {
      end = end - count + newline + 1;
      break;
    }
    end -= count;
  }
  if (end < size_bytes_) truncate(end);
}

void AppendFile::close_file() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace lockstep::base
