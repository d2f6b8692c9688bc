#include "src/base/hash_update.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(XXH_VECTOR == XXH_AVX2);

namespace lockstep::base {

void hash_update_avx2(void* state, const void* data, size_t size_bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size_bytes);
}

}  // namespace lockstep::base
