#include "src/base/random.h"

#include <bit>

#include "src/base/check.h"

namespace lockstep::base {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

constexpr int kFeistelRounds = 8;

uint64_t feistel(uint64_t key, unsigned half_bits, uint64_t value) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (int round = 0; round < kFeistelRounds; ++round) {
    const uint64_t mixed = mix(key ^ mix(right + (static_cast<uint64_t>(round) << 56)));
    const uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

uint64_t mix_key(uint64_t seed, uint64_t first, uint64_t second) {
  return mix(mix(mix(seed) ^ first) ^ (second + 0x632be59bd9b4e019u));
}

uint32_t permute_32(uint64_t key, uint32_t counter) {
  return static_cast<uint32_t>(feistel(key, 16, counter));
}

uint64_t permute_index(uint64_t key, uint64_t size, uint64_t index) {
  LOCKSTEP_CHECK(index < size, index, size);
  const auto bits = static_cast<unsigned>(std::bit_width(size - 1));
  const unsigned half_bits = (bits + 1) / 2;
  if (half_bits == 0) return 0;
  // The domain holds fewer than four times `size` values and the walk is a cycle of a bijection
  // that contains `index` itself, so it comes back inside.
  uint64_t value = index;
  do {
    value = feistel(key, half_bits, value);
  } while (value >= size);
  return value;
}

}  // namespace lockstep::base
