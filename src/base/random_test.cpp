#include "src/base/random.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

TEST(Random, Permute32NeverRepeatsAValue) {
  std::vector<uint32_t> values(200'000);
  for (uint32_t i = 0; i < values.size(); ++i) values[i] = permute_32(7, i);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
}

TEST(Random, PermuteIndexIsAPermutationOfEverySmallSize) {
  for (uint64_t size = 1; size <= 300; ++size) {
    std::vector<bool> seen(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t at = permute_index(11, size, i);
      ASSERT_LT(at, size);
      ASSERT_FALSE(seen[at]) << "size " << size;
      seen[at] = true;
    }
  }
}

TEST(Random, AnotherKeyGivesAnotherOrder) {
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i)
    same += permute_index(1, 1000, i) == permute_index(2, 1000, i);
  EXPECT_LT(same, 10);
}

TEST(Random, PositionsAreUniformOverKeys) {
  // Where index 0 of 8 lands over 8000 keys: each place about 1000 times (6 standard deviations).
  std::vector<int> places(8, 0);
  for (uint64_t key = 0; key < 8000; ++key) ++places[permute_index(mix_key(5, key), 8, 0)];
  for (int count : places) {
    EXPECT_GT(count, 820);
    EXPECT_LT(count, 1180);
  }
}

TEST(Random, SizesNearTheTopOf64BitsWork) {
  const uint64_t size = uint64_t{1} << 62;
  EXPECT_LT(permute_index(3, size - 1, size - 2), size - 1);
}

}  // namespace
}  // namespace lockstep::base
