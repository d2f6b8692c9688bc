#include "src/base/hash.h"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "src/base/hash_update.h"

namespace lockstep::base {

struct alignas(64) Hasher::State {
  XXH3_state_t xxh;
};

namespace {

Hash128 from_xxh(XXH128_hash_t value) { return {value.low64, value.high64}; }

void update_plainly(void* state, const void* data, size_t size_bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size_bytes);
}

HashUpdate choose_update() {
#if defined(LOCKSTEP_HASH_AVX2)
  if (__builtin_cpu_supports("avx2") != 0) return &hash_update_avx2;
#endif
  return &update_plainly;
}

}  // namespace

std::string to_hex(const Hash128& hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

Hash128 hash_bytes(const void* data, size_t size_bytes) {
  return from_xxh(XXH3_128bits(data, size_bytes));
}

Hasher::Hasher() : state_(std::make_unique<State>()) { reset(); }
Hasher::~Hasher() = default;

void Hasher::reset() { XXH3_128bits_reset(&state_->xxh); }

void Hasher::update(const void* data, size_t size_bytes) {
  static const HashUpdate kChosen = choose_update();
  kChosen(&state_->xxh, data, size_bytes);
}

void Hasher::update_text(std::string_view text) {
  update_number(text.size());
  update(text.data(), text.size());
}

void Hasher::update_number(uint64_t number) { update(&number, sizeof number); }

Hash128 Hasher::digest() const { return from_xxh(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace lockstep::base
