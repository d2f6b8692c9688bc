#pragma once

#include <cstdint>

// Random keys and permutations as pure functions. Nothing here holds state: the state of a run is
// its step number (design.md section 3, rules 8 and 9).

namespace lockstep::base {

/// Mixes words into a 64-bit key. Different argument lists give unrelated keys.
uint64_t mix_key(uint64_t seed, uint64_t first, uint64_t second = 0);

/// A bijection of the 32-bit numbers chosen by `key`: two counters never give the same value.
/// LibTorch uses 32 bits of a generator's seed, so a hash of (step, microbatch) would repeat
/// seeds within 77,000 microbatches (birthday bound); a bijection of a counter does not.
uint32_t permute_32(uint64_t key, uint32_t counter);

/// The place of `index` in a permutation of 0 .. size-1 chosen by `key`; index < size, size >= 1.
/// A Feistel network over the next even number of bits, walked until it lands inside.
uint64_t permute_index(uint64_t key, uint64_t size, uint64_t index);

}  // namespace lockstep::base
