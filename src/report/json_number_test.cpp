#include "src/report/json_number.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/report/comma_locale.h"

namespace lockstep::report {
namespace {

uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }

TEST(JsonNumber, WritesTheShortestText) {
  EXPECT_EQ(json_number(0), "0");
  EXPECT_EQ(json_number(3), "3");
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(json_number(1.0f / 3), "0.3333333432674408");
  EXPECT_EQ(json_number(1e300), "1e+300");
  EXPECT_EQ(json_number(5e-324), "5e-324");
  EXPECT_EQ(json_number(-2.5), "-2.5");
}

TEST(JsonNumber, KeepsTheSignOfZero) {
  EXPECT_EQ(json_number(-0.0), "-0.0");
  EXPECT_EQ(bits(*parse_json_number("-0.0")), bits(-0.0));
  EXPECT_EQ(bits(nlohmann::json::parse("-0.0").get<double>()), bits(-0.0));
}

TEST(JsonNumber, NonFiniteValuesAreWords) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json_number(infinity), "\"Infinity\"");
  EXPECT_EQ(json_number(-infinity), "\"-Infinity\"");
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "\"NaN\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::quiet_NaN()), "\"NaN\"");
  EXPECT_EQ(*parse_json_number("Infinity"), infinity);
  EXPECT_EQ(*parse_json_number("-Infinity"), -infinity);
  EXPECT_TRUE(std::isnan(*parse_json_number("NaN")));
}

TEST(JsonNumber, EveryDoubleReadsBack) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = json_number(value);
    ASSERT_EQ(bits(*parse_json_number(text)), bits(value)) << text;
    if (i % 20 == 0) {
      ASSERT_EQ(bits(nlohmann::json::parse(text).get<double>()), bits(value)) << text;
    }
  }
}

TEST(JsonNumber, OtherTextIsRefused) {
  for (const char* text :
       {"",      "-",   "+1",  " 1",       "1 ",   "01",   "-01", ".5",    "5.",  "1e",
        "1e999", "nan", "inf", "infinity", "-NaN", "0x10", "1,5", "1.5.5", "--1", "1.e5"}) {
    EXPECT_FALSE(parse_json_number(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_json_number(std::string_view("1\0", 2)).has_value());
  EXPECT_EQ(parse_json_number("1E5"), 1e5);
}

TEST(JsonNumber, TheLocaleDoesNotMatter) {
  const CommaLocale locale;
  EXPECT_TRUE(CommaLocale::c_locale_uses_comma());
  EXPECT_EQ(json_number(1234.5), "1234.5");
  EXPECT_EQ(parse_json_number("1234.5"), 1234.5);
  EXPECT_FALSE(parse_json_number("1234,5").has_value());
}

TEST(JsonString, EscapesAndReplaces) {
  EXPECT_EQ(json_string("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(json_string("ü"), "\"ü\"");
  EXPECT_EQ(json_string("a\xff"), "\"a\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace lockstep::report
