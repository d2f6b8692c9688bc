#include "src/train/token_file.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

Bytes header(uint32_t magic, uint32_t version, uint32_t count) {
  Bytes head(kTokenHeaderBytes);
  std::memcpy(head.data(), &magic, 4);
  std::memcpy(head.data() + 4, &version, 4);
  std::memcpy(head.data() + 8, &count, 4);
  return head;
}

Bytes of(std::string_view text) { return Bytes(text.begin(), text.end()); }

std::string refusal(const Bytes& head, uint64_t size_bytes) {
  try {
    parse_token_file(head, size_bytes, "d/train.bin");
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kInput));
    EXPECT_THAT(error.what(), HasSubstr("'d/train.bin'"));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

TEST(TokenFile, RawFilesAreUint16) {
  const TokenFileLayout layout = parse_token_file(Bytes{1, 2, 3, 4, 5, 6}, 6, "f");
  EXPECT_EQ(layout.width_bytes, 2u);
  EXPECT_EQ(layout.offset_bytes, 0u);
  EXPECT_EQ(layout.count, 3u);
  EXPECT_EQ(parse_token_file(Bytes{0x1f, 0x8b}, 2, "f").count, 1u);  // a token, not gzip
}

TEST(TokenFile, AnOddLengthIsRefusedWithTheSize) {
  EXPECT_THAT(refusal(Bytes(101), 101), AllOf(HasSubstr("101 bytes"), HasSubstr("odd")));
}

TEST(TokenFile, LlmCHeadersGiveWidthAndCount) {
  const TokenFileLayout narrow = parse_token_file(header(20240520, 1, 10), 1024 + 20, "f");
  EXPECT_EQ(narrow.width_bytes, 2u);
  EXPECT_EQ(narrow.offset_bytes, 1024u);
  EXPECT_EQ(narrow.count, 10u);
  const TokenFileLayout wide = parse_token_file(header(20240801, 7, 10), 1024 + 40, "f");
  EXPECT_EQ(wide.width_bytes, 4u);
  EXPECT_EQ(wide.count, 10u);
}

TEST(TokenFile, ASizeThatDoesNotMatchIsRefusedWithBothSizes) {
  EXPECT_THAT(refusal(header(20240520, 1, 10), 1044 - 1),
              AllOf(HasSubstr("10 tokens of 2 bytes"), HasSubstr("1044 bytes"), HasSubstr("1043")));
  EXPECT_THAT(refusal(header(20240520, 1, 10), 1044 + 2), HasSubstr("1046"));
  EXPECT_THAT(refusal(header(20240801, 7, 10), 1044), HasSubstr("10 tokens of 4 bytes"));
}

TEST(TokenFile, NegativeCountsAreRefused) {
  EXPECT_THAT(refusal(header(20240520, 1, 0xffffffffu), 1024 + uint64_t{0xffffffffu} * 2),
              HasSubstr("-1 tokens"));
  EXPECT_THAT(refusal(header(20240801, 7, 0x80000000u), 1024), HasSubstr("-2147483648 tokens"));
}

TEST(TokenFile, UnknownVersionsAreRefusedWithTheNumbers) {
  EXPECT_THAT(
      refusal(header(20240520, 2, 10), 1044),
      AllOf(HasSubstr("magic 20240520"), HasSubstr("version 2"), HasSubstr("version 1 is")));
  EXPECT_THAT(refusal(header(20240801, 1, 10), 1064), HasSubstr("version 7 is"));
}

TEST(TokenFile, AHeaderThatIsCutOffIsRefused) {
  Bytes head = header(20240520, 1, 10);
  head.resize(100);
  EXPECT_THAT(refusal(head, 100), AllOf(HasSubstr("1024"), HasSubstr("only 100")));
}

TEST(TokenFile, EvaluationFilesAreNamed) {
  EXPECT_THAT(refusal(header(20240522, 1, 10), 2000), HasSubstr("evaluation file"));
}

TEST(TokenFile, OtherFormatsNamedBinAreRefusedByName) {
  EXPECT_THAT(refusal(of("PK\x03\x04 pytorch_model"), 100), HasSubstr("zip archive"));
  EXPECT_THAT(refusal(of("\x93NUMPY\x01"), 100), HasSubstr("NumPy"));
  EXPECT_THAT(refusal(of("\x7f"
                         "ELF\x02"),
                      100),
              HasSubstr("ELF"));
}

TEST(TokenFile, RandomAndMutatedHeadersNeverCrash) {
  std::mt19937_64 random(5);
  const uint32_t magics[] = {20240520, 20240801, 20240522, 0, 0xffffffffu};
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes head = header(magics[random() % 5], static_cast<uint32_t>(random() % 9),
                        static_cast<uint32_t>(random() >> (32 + random() % 32)));
    for (auto changes = random() % 4; changes > 0; --changes) {
      head[random() % 16] = static_cast<uint8_t>(random());
    }
    if (random() % 4 == 0) head.resize(random() % (head.size() + 1));
    const uint64_t size = head.size() < kTokenHeaderBytes
                              ? head.size()
                              : kTokenHeaderBytes + (random() >> (random() % 64));
    try {
      const TokenFileLayout layout = parse_token_file(head, size, "f");
      ++accepted;
      ASSERT_TRUE(layout.width_bytes == 2 || layout.width_bytes == 4);
      ASSERT_LE(layout.offset_bytes, size);
      ASSERT_EQ((size - layout.offset_bytes) % layout.width_bytes, 0u);
      ASSERT_EQ((size - layout.offset_bytes) / layout.width_bytes, layout.count);
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(KnownBinaryFormat, NamesFormatsByTheirFirstBytes) {
  const auto name = [](std::string_view text) {
    return std::string(known_binary_format(of(text)).value_or("-"));
  };
  EXPECT_THAT(name("\x93NUMPY\x01"), HasSubstr(".npy"));
  EXPECT_THAT(name("PK\x03\x04"), HasSubstr("zip"));
  EXPECT_THAT(name(std::string_view("PAR1\x15\0", 6)), HasSubstr("Parquet"));
  EXPECT_THAT(name("\x1f\x8b\x08"), HasSubstr("gzip"));
  EXPECT_THAT(name("\x7f"
                   "ELF"),
              HasSubstr("ELF"));
  EXPECT_THAT(name("\x89PNG\r\n\x1a\n"), HasSubstr("PNG"));
}

TEST(KnownBinaryFormat, TextsAreNone) {
  for (const std::string_view text :
       {std::string_view(""), std::string_view("P"), std::string_view("PAR1 is a text"),
        std::string_view("GGUF, said the model"), std::string_view("\xef\xbb\xbf BOM"),
        std::string_view("\0\0\0", 3), std::string_view("\xff\xfeU\0T\0F\0", 8),
        std::string_view("{\"a\": 1}\n"), std::string_view("#!/bin/sh\n")}) {
    EXPECT_FALSE(known_binary_format(of(text)).has_value()) << text;
  }
}

}  // namespace
}  // namespace lockstep::train
