#include "src/launch/rank_list.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::launch {
namespace {

using testing::HasSubstr;

std::string shown(std::string_view text, uint32_t replica_count) {
  std::string ranks;
  for (const bool is_there : parse_ranks("--tee", text, replica_count)) {
    ranks += is_there ? 'x' : '.';
  }
  return ranks;
}

std::string refusal(std::string_view text, uint32_t replica_count = 4) {
  try {
    parse_ranks("--tee", text, replica_count);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(RankList, NamesRanks) {
  EXPECT_EQ(shown("all", 4), "xxxx");
  EXPECT_EQ(shown("none", 4), "....");
  EXPECT_EQ(shown("0", 4), "x...");
  EXPECT_EQ(shown("0,2-3", 4), "x.xx");
  EXPECT_EQ(shown("3,0,0-1", 4), "xx.x");
  EXPECT_EQ(shown("255", 256).find('x'), 255u);
}

TEST(RankList, RefusesARankThatIsNotThere) {
  EXPECT_THAT(refusal("4"), HasSubstr("--tee '4': there is no rank 4: the ranks of 4 replicas are "
                                      "0 to 3."));
  EXPECT_THAT(refusal("0,2-4000000000"), HasSubstr("no rank 4000000000"));
  EXPECT_THAT(refusal("1", 1), HasSubstr("the only replica has rank 0"));
}

TEST(RankList, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "0,", ",0", "0,,1", "0-", "-1", "1-0", "0-1-2", "x", "all,0",
                           "All", " 0", "0 1", "0x1", "99999999999", "1.0"}) {
    EXPECT_THAT(refusal(text), HasSubstr("expected all, none, or ranks")) << text;
  }
  EXPECT_THAT(refusal("\x1b[31m"), HasSubstr("'\\x1b[31m'"));
}

}  // namespace
}  // namespace lockstep::launch
