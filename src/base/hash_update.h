#pragma once

#include <stddef.h>

// C headers only: hash_avx2.cpp is compiled for AVX2, and an inline function of the C++ library
// that it compiled so could be the one that the linker keeps for the whole program.

namespace lockstep::base {

/// XXH3_128bits_update() on an XXH3_state_t.
using HashUpdate = void (*)(void* state, const void* data, size_t size_bytes);

/// The same bits, twice as fast. REQUIRES: a CPU with AVX2.
void hash_update_avx2(void* state, const void* data, size_t size_bytes);

}  // namespace lockstep::base
