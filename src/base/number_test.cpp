#include "src/base/number.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

TEST(NumberFrom, TakesEveryValueOfTheType) {
  EXPECT_EQ(number_from<uint32_t>("0"), 0u);
  EXPECT_EQ(number_from<uint32_t>("007"), 7u);
  EXPECT_EQ(number_from<uint32_t>("4294967295"), UINT32_MAX);
  EXPECT_EQ(number_from<uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(number_from<int32_t>("-2147483648"), INT32_MIN);
  EXPECT_EQ(number_from<double>("3e-4"), 3e-4);
  EXPECT_EQ(number_from<double>("-0.5"), -0.5);
}

TEST(NumberFrom, RefusesWhatTheTypeCannotHold) {
  EXPECT_FALSE(number_from<uint32_t>("4294967296"));
  EXPECT_FALSE(number_from<uint64_t>("18446744073709551616"));
  EXPECT_FALSE(number_from<int32_t>("2147483648"));
  EXPECT_FALSE(number_from<uint64_t>("-1"));
  EXPECT_FALSE(number_from<double>("1e400"));
}

TEST(NumberFrom, RefusesWhatIsNotANumberFromEndToEnd) {
  for (const char* text :
       {"", " ", "x", "1x", "x1", " 1", "1 ", "1\n", "+1", "1.0", "1e3", "0x10", "1,000", "--1"}) {
    EXPECT_FALSE(number_from<uint64_t>(text)) << "'" << text << "'";
  }
  for (const char* text : {"", ".", "1.5 ", "1,5", "+1.5", "1.5f", "e5"}) {
    EXPECT_FALSE(number_from<double>(text)) << "'" << text << "'";
  }
  EXPECT_FALSE(number_from<uint64_t>({}));
  EXPECT_FALSE(number_from<uint64_t>(std::string_view("1\0", 2)));
}

TEST(NumberFrom, ReadsNoFurtherThanTheText) {
  EXPECT_EQ(number_from<uint64_t>(std::string_view("12345").substr(1, 2)), 23u);
}

// What reads a number for a range says so itself.
TEST(NumberFrom, TakesInfinityAndNaNWhereTheTypeHasThem) {
  EXPECT_EQ(number_from<double>("inf"), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(number_from<double>("nan").value()));
}

}  // namespace
}  // namespace lockstep::base
