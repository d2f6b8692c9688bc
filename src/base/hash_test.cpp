#include "src/base/hash.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

TEST(Hash, EmptyInputHasThePublishedValue) {
  // XXH3_128bits of no bytes with seed 0, from the xxHash specification's sanity table.
  EXPECT_EQ(to_hex(hash_bytes("", 0)), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, PiecesDoNotMatter) {
  std::string bytes(100'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 7);
  const Hash128 whole = hash_bytes(bytes.data(), bytes.size());
  for (size_t piece : {1u, 63u, 64u, 4096u, 99'999u}) {
    Hasher hasher;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      hasher.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(hasher.digest(), whole) << piece;
  }
}

TEST(Hash, TextIsSeparatedFromItsNeighbour) {
  Hasher left;
  left.update_text("ab");
  left.update_text("c");
  Hasher right;
  right.update_text("a");
  right.update_text("bc");
  EXPECT_NE(left.digest(), right.digest());
}

}  // namespace
}  // namespace lockstep::base
