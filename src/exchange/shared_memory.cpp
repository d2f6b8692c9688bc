#include "src/exchange/shared_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace lockstep::exchange {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::kEnvironment, what + ": " + std::strerror(error));
}

// Before it is too late: beyond this limit the kernel does not only refuse, it sends SIGXFSZ.
void check_file_size_limit(const std::string& name, uint64_t size_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || size_bytes <= limit.rlim_cur) return;
  throw Error(ErrorCode::kEnvironment,
              "cannot size shared memory '" + name + "' to " + std::to_string(size_bytes) +
                  " bytes: the limit on file sizes is " + std::to_string(limit.rlim_cur) +
                  " bytes (raise it with `ulimit -f`)");
}

}  // namespace

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Descriptor make_shared_memory(const std::string& name, uint64_t size_bytes) {
  check_file_size_limit(name, size_bytes);
  Descriptor memory(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) fail("cannot create shared memory '" + name + "' (memfd_create)", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0) {
    fail("cannot size shared memory '" + name + "' to " + std::to_string(size_bytes) + " bytes",
         errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("cannot seal shared memory '" + name + "'", errno);
  }
  return memory;
}

uint64_t size_of_shared_memory(const Descriptor& memory) {
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) fail("cannot read the size of shared memory", errno);
  return static_cast<uint64_t>(status.st_size);
}

Mapping::Mapping(const Descriptor& memory, uint64_t offset, uint64_t size_bytes, Kind kind)
    : size_bytes_(size_bytes) {
  const int flags = (kind == Kind::kShared ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE;
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, memory.get(),
                      static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    fail("cannot map " + std::to_string(size_bytes) +
             " bytes of shared memory (address space limited? see `ulimit -v`)",
         errno);
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void Mapping::populate(uint64_t offset, uint64_t size_bytes) const {
  LOCKSTEP_CHECK(offset + size_bytes <= size_bytes_, offset + size_bytes, size_bytes_);
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const uint64_t length = round_to_pages(offset + size_bytes - begin);
  if (length == 0 || ::madvise(data_ + begin, length, MADV_POPULATE_WRITE) == 0) return;
  if (errno == EINVAL) return;  // before Linux 5.14: pages come when first written
  fail("cannot take " + std::to_string(length) + " bytes of shared memory", errno);
}

void Mapping::discard_writes(uint64_t offset, uint64_t size_bytes) const {
  LOCKSTEP_CHECK(offset + size_bytes <= size_bytes_, offset + size_bytes, size_bytes_);
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const uint64_t length = round_to_pages(offset + size_bytes - begin);
  if (length != 0 && ::madvise(data_ + begin, length, MADV_DONTNEED) != 0) {
    fail("cannot drop private pages", errno);
  }
}

}  // namespace lockstep::exchange
