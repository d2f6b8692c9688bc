#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::exchange {

/// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// A memfd of `size_bytes`, sealed against shrinking and growing: a peer cannot make our accesses
/// fail by truncating it, and no 64 MB limit of a container's /dev/shm applies. Pages are taken
/// when first written. Throws Error(kEnvironment).
Descriptor make_shared_memory(const std::string& name, uint64_t size_bytes);

uint64_t size_of_shared_memory(const Descriptor& memory);

/// A mapping of [offset, offset + size) of a shared memory; the offset is a multiple of the page
/// size.
class Mapping {
 public:
  enum class Kind {
    kShared,   // writes are seen by all
    kPrivate,  // copy on write: reads see what others write until this process writes to a page
  };

  Mapping() = default;
  Mapping(const Descriptor& memory, uint64_t offset, uint64_t size_bytes, Kind kind);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

  /// Takes the pages of [offset, offset + size) now, so that they lie on this process's NUMA node
  /// and no later write can fail for want of memory. Check memory_budget() first: the kernel
  /// does not refuse, it kills.
  void populate(uint64_t offset, uint64_t size_bytes) const;

  /// Private mappings: forgets what this process wrote to the pages that hold the range.
  void discard_writes(uint64_t offset, uint64_t size_bytes) const;

 private:
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

inline constexpr uint64_t kPageBytes = 4096;

/// `size` rounded up to whole pages.
constexpr uint64_t round_to_pages(uint64_t size) {
  return (size + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace lockstep::exchange
