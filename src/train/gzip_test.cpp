#include "src/train/gzip.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"
#include "src/train/gzip_test_support.h"

namespace lockstep::train {
namespace {

using base::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& path, uint64_t limit_bytes = 1 << 20) {
  try {
    read_unpacked(path, limit_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kInput));
    EXPECT_THAT(error.what(), HasSubstr("'" + path + "'"));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

TEST(Gzip, PlainFilesAreReadAsTheyAre) {
  const TempFolder folder;
  EXPECT_EQ(read_unpacked(folder.write("a", "abc")), "abc");
  EXPECT_EQ(read_unpacked(folder.write("b", "")), "");
  EXPECT_EQ(read_unpacked(folder.write("c", "\x1f")), "\x1f");
}

TEST(Gzip, AllMembersAreJoined) {
  const TempFolder folder;
  const std::string long_text(700'000, 'x');
  EXPECT_EQ(read_unpacked(folder.write("a.gz", gzip("one,"))), "one,");
  EXPECT_EQ(read_unpacked(folder.write("b", gzip("one,") + gzip("") + gzip(long_text))),
            "one," + long_text);
}

TEST(Gzip, ACutFileIsRefusedWithItsSizes) {
  const TempFolder folder;
  const std::string whole = gzip(std::string(1000, 'x') + "y");
  for (const size_t left : {size_t{2}, size_t{9}, size_t{12}, whole.size() - 1}) {
    EXPECT_THAT(refusal(folder.write("cut.gz", whole.substr(0, left))),
                AllOf(HasSubstr("ends too early"), HasSubstr(std::to_string(left) + " bytes")))
        << left;
  }
}

TEST(Gzip, AWrongChecksumIsRefused) {
  const TempFolder folder;
  std::string bytes = gzip("some text");
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  EXPECT_THAT(refusal(folder.write("bad.gz", bytes)), HasSubstr("incorrect"));
}

TEST(Gzip, WhatFollowsTheEndIsRefused) {
  const TempFolder folder;
  const std::string bytes = gzip("some text");
  EXPECT_THAT(
      refusal(folder.write("more.gz", bytes + "more")),
      HasSubstr("something else than gzip follows at byte " + std::to_string(bytes.size())));
}

TEST(Gzip, NoMoreThanTheLimitIsUnpacked) {
  const TempFolder folder;
  const std::string path = folder.write("bomb.gz", gzip(std::string(100'000, '\0')));
  EXPECT_EQ(read_unpacked(path, 100'000).size(), 100'000u);
  EXPECT_THAT(refusal(path, 99'999), HasSubstr("unpack to more than 97.7 KiB"));
}

}  // namespace
}  // namespace lockstep::train
