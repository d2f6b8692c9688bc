#include "src/train/idx_file.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string idx(const std::vector<uint32_t>& sizes, const std::string& numbers, char type = 8) {
  std::string bytes = "\0\0"s + type + static_cast<char>(sizes.size());
  for (const uint32_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
  }
  return bytes + numbers;
}

std::string refusal(const std::string& bytes) {
  try {
    parse_idx(bytes, "d/images");
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kInput));
    EXPECT_THAT(error.what(), HasSubstr("'d/images'"));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

TEST(Idx, SizesAreBigEndian) {
  const IdxLayout images = parse_idx(idx({258, 2, 3}, std::string(258 * 6, 'x')), "f");
  EXPECT_THAT(images.sizes, ElementsAre(258, 2, 3));
  EXPECT_EQ(images.offset_bytes, 16u);
  EXPECT_EQ(images.item_count(), 258u);
  EXPECT_EQ(images.item_size(), 6u);
  EXPECT_EQ(parse_idx(idx({3}, "abc"), "f").item_size(), 1u);
}

TEST(Idx, AnotherLengthThanTheHeaderSaysIsRefusedWithBoth) {
  EXPECT_THAT(refusal(idx({2, 2, 2}, "1234567")),
              AllOf(HasSubstr("2 x 2 x 2 = 8 bytes"), HasSubstr("7 follow"), HasSubstr("cut off")));
  EXPECT_THAT(refusal(idx({2, 2, 2}, "123456789")), HasSubstr("9 follow"));
}

TEST(Idx, HugeClaimsAreRefusedWithoutMemoryForThem) {
  EXPECT_THAT(refusal(idx({0xffffffff, 0xffffffff, 2}, "x")), HasSubstr("which no file holds"));
  EXPECT_THAT(refusal(idx({0xffffffff, 0xffffffff}, "x")), HasSubstr("18446744065119617025 bytes"));
}

TEST(Idx, NothingInsideIsRefused) {
  EXPECT_THAT(refusal(idx({0, 28, 28}, "")), HasSubstr("0 x 28 x 28"));
  EXPECT_THAT(refusal(idx({1, 0, 28}, "")), HasSubstr("1 x 0 x 28"));
}

TEST(Idx, AShortHeaderIsRefused) {
  EXPECT_THAT(refusal(idx({1, 2}, "ab").substr(0, 11)),
              AllOf(HasSubstr("2 dimensions takes 12 bytes"), HasSubstr("has 11")));
  EXPECT_THAT(refusal("\0\0\x08"s), HasSubstr("starts with 00 00 08"));
}

TEST(Idx, AnotherStartIsRefusedWithWhatItIs) {
  EXPECT_THAT(refusal("a,b,c\n"), HasSubstr("starts with 61 2c 62 2c"));
  EXPECT_THAT(refusal("\0\0\x08\x00zzzz"s), HasSubstr("starts with 00 00 08 00"));
}

TEST(Idx, OtherNumbersThanBytesAreRefusedByName) {
  EXPECT_THAT(refusal(idx({1, 1}, "abcd", 0x0d)), HasSubstr("32-bit floats (type 0x0d)"));
}

TEST(Idx, LabelsAreLookedForUnderTheImagesName) {
  EXPECT_THAT(label_paths_of("images/train-images-idx3-ubyte"),
              ElementsAre("images/train-labels-idx1-ubyte", "images/train-labels-idx1-ubyte.gz"));
  EXPECT_THAT(label_paths_of("t10k-images.idx3-ubyte.gz"),
              ElementsAre("t10k-labels.idx1-ubyte.gz", "t10k-labels.idx1-ubyte"));
  EXPECT_THAT(label_paths_of("images/digits"), IsEmpty());
}

}  // namespace
}  // namespace lockstep::train
