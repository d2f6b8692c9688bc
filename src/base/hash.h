#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::base {

/// 128 bits of XXH3: tells that two byte strings differ, does not defend against forgery.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
};

/// 32 lower-case hexadecimal digits, the high half first.
std::string to_hex(const Hash128& hash);

Hash128 hash_bytes(const void* data, size_t size_bytes);

/// XXH3-128 of a byte string handed over in pieces. How it is cut into pieces does not matter.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void reset();
  void update(const void* data, size_t size_bytes);
  void update_text(std::string_view text);  // length first, so that "ab","c" is not "a","bc"
  void update_number(uint64_t number);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::base
