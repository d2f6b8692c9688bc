#include "src/train/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> value_of(const std::string& text) {
  const auto entries = parse_config("key = " + text, "f");
  return entries.size() == 1 ? entries[0].values : std::vector<std::string>{"?"};
}

std::string refusal_of(const std::string& text) {
  try {
    parse_config(text, "a file");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.what(), HasSubstr("'a file'"));
    return error.what();
  }
  return "";
}

TEST(ConfigFile, ReadsKeysInOrderWithTheirLines) {
  const auto entries =
      parse_config("# head\n\nlr = 3e-4\r\n  global-batch=8 # tail\n\"out\" = 'x'", "f");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].key, "lr");
  EXPECT_EQ(entries[0].line, 3u);
  EXPECT_EQ(entries[1].key, "global-batch");
  EXPECT_THAT(entries[1].values, ElementsAre("8"));
  EXPECT_EQ(entries[2].key, "out");
  EXPECT_EQ(entries[2].line, 5u);
}

TEST(ConfigFile, AnEmptyFileHasNoKeys) {
  EXPECT_TRUE(parse_config("", "f").empty());
  EXPECT_TRUE(parse_config("\xef\xbb\xbf# only\r\n\t\n", "f").empty());
}

TEST(ConfigFile, ReadsEveryKindOfValue) {
  EXPECT_THAT(value_of("1_000"), ElementsAre("1000"));
  EXPECT_THAT(value_of("+0.5"), ElementsAre("0.5"));
  EXPECT_THAT(value_of("-7"), ElementsAre("-7"));
  EXPECT_THAT(value_of("true"), ElementsAre("true"));
  EXPECT_THAT(value_of("nan"), ElementsAre("nan"));
  EXPECT_THAT(value_of("\"a b#c,]\""), ElementsAre("a b#c,]"));
  EXPECT_THAT(value_of("''"), ElementsAre(""));
  EXPECT_THAT(value_of("'C:\\n \"x\"'"), ElementsAre("C:\\n \"x\""));
  EXPECT_THAT(value_of(R"("\"\\\t\u00e4\U0001F600")"),
              ElementsAre("\"\\\t\xc3\xa4\xf0\x9f\x98\x80"));
}

TEST(ConfigFile, ReadsArraysOverSeveralLines) {
  EXPECT_THAT(value_of("[]"), ElementsAre());
  EXPECT_THAT(value_of("[1,2]"), ElementsAre("1", "2"));
  EXPECT_THAT(value_of("[ # first\n  'a', # second\n\n  \"b\",\n] # end\n"), ElementsAre("a", "b"));
}

TEST(ConfigFile, RefusesTheRestWithItsLine) {
  EXPECT_THAT(refusal_of("\n\nlr 3"), HasSubstr("line 3: expected = after 'lr'"));
  EXPECT_THAT(refusal_of("[train]"), HasSubstr("line 1: options stand without sections"));
  EXPECT_THAT(refusal_of("a.b = 1"), HasSubstr("no dots"));
  EXPECT_THAT(refusal_of("= 1"), HasSubstr("expected NAME = VALUE"));
  EXPECT_THAT(refusal_of("lr ="), HasSubstr("a value is missing"));
  EXPECT_THAT(refusal_of("optimizer = sgd"),
              HasSubstr("'sgd': expected a number, true, false, or a text"));
  EXPECT_THAT(refusal_of("a = 1 2"), HasSubstr("something follows"));
  EXPECT_THAT(refusal_of("a = 1\na = 2"), HasSubstr("line 2: the key 'a' comes twice"));
  EXPECT_THAT(refusal_of("a = \"x\nb = 1"), HasSubstr("must end in its line"));
  EXPECT_THAT(refusal_of("a = 'x"), HasSubstr("must end in its line"));
  EXPECT_THAT(refusal_of("a = \"\"\"x\"\"\""), HasSubstr("several lines"));
  EXPECT_THAT(refusal_of("a = \"\\x\""), HasSubstr("backslash"));
  EXPECT_THAT(refusal_of("a = \"\\u12\""), HasSubstr("4 hexadecimal digits"));
  EXPECT_THAT(refusal_of("a = \"\\uD800\""), HasSubstr("hexadecimal"));
  EXPECT_THAT(refusal_of("a = [1"), HasSubstr("no end"));
  EXPECT_THAT(refusal_of("a = [1 2]"), HasSubstr("comma"));
  EXPECT_THAT(refusal_of("a = [[1]]"), HasSubstr("array of arrays"));
  EXPECT_THAT(refusal_of(std::string("\0\x7f"
                                     "ELF",
                                     5)),
              HasSubstr("line 1"));
}

TEST(ConfigFile, EveryPrefixIsReadOrRefused) {
  const std::string text =
      "a = [\"x\\u00e4\", 'y', # c\r\n 1_0]\nb = \"\\U0001F600\" # end\nc=true";
  for (size_t size = 0; size <= text.size(); ++size) {
    try {
      EXPECT_LE(parse_config(text.substr(0, size), "f").size(), 3u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
    }
  }
}

}  // namespace
}  // namespace lockstep::train
