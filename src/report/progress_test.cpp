#include "src/report/progress.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/report/comma_locale.h"

namespace lockstep::report {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgressState state_at(uint64_t step) {
  return {.step = step,
          .total_steps = 400,
          .loss = 3.2541,
          .gradient_norm = 1.02,
          .learning_rate = 3e-4,
          .samples_per_second = 812,
          .tokens_per_second = 41234};
}

// What a terminal shows of a bar's output.
std::string shown(const std::string& output) {
  EXPECT_THAT(output, StartsWith("\r"));
  const size_t erase = output.find("\x1b[K");
  EXPECT_NE(erase, std::string::npos);
  return output.substr(1, erase - 1);
}

TEST(ProgressMode, AutoIsABarOnlyOnARealTerminal) {
  EXPECT_EQ(resolve_progress_mode(ProgressMode::kAuto, true, "xterm"), ProgressMode::kBar);
  EXPECT_EQ(resolve_progress_mode(ProgressMode::kAuto, true, "dumb"), ProgressMode::kPlain);
  EXPECT_EQ(resolve_progress_mode(ProgressMode::kAuto, true, ""), ProgressMode::kPlain);
  EXPECT_EQ(resolve_progress_mode(ProgressMode::kAuto, false, "xterm"), ProgressMode::kPlain);
  EXPECT_EQ(resolve_progress_mode(ProgressMode::kBar, false, ""), ProgressMode::kBar);
  EXPECT_EQ(parse_progress_mode("none"), ProgressMode::kNone);
  EXPECT_FALSE(parse_progress_mode("Bar").has_value());
}

TEST(PlainProgress, WritesTheAgreedLine) {
  Progress progress({.mode = ProgressMode::kPlain});
  EXPECT_EQ(progress.line(state_at(1), 100.0),
            "step 1/400  loss 3.2541  norm 1.02  lr 0.0003  41.2k tokens/s\n");
  const double pace = 130.0 / 388;  // so that 2m10s are left
  EXPECT_EQ(progress.line(state_at(12), 100.0 + 11 * pace),
            "step 12/400  loss 3.2541  norm 1.02  lr 0.0003  41.2k tokens/s  2m10s left\n");
}

TEST(PlainProgress, ShowsFirstThenEveryIntervalThenLast) {
  Progress progress({.mode = ProgressMode::kPlain});
  std::string steps;
  for (uint64_t step = 1; step <= 400; ++step) {
    if (progress.line(state_at(step), static_cast<double>(step) * 0.015625)) {
      steps += std::to_string(step) + " ";
    }
  }
  EXPECT_EQ(steps, "1 129 257 385 400 ");
}

TEST(PlainProgress, HasNoTerminalCodes) {
  Progress progress({.mode = ProgressMode::kPlain});
  const std::string line = *progress.line(state_at(1), 0);
  EXPECT_EQ(line.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_EQ(progress.make_room(), "");
}

TEST(PlainProgress, SamplesAndUnknownTotalsAreShown) {
  Progress progress({.mode = ProgressMode::kPlain});
  ProgressState state = state_at(3);
  state.tokens_per_second = 0;
  state.total_steps = 0;
  state.loss = std::numeric_limits<double>::quiet_NaN();
  state.gradient_norm = std::numeric_limits<double>::infinity();
  state.learning_rate = 1e-5;
  EXPECT_EQ(progress.line(state, 0), "step 3  loss NaN  norm Infinity  lr 1e-05  812 samples/s\n");
  state.step = 10;
  state.loss = 0.000012345;
  EXPECT_THAT(*progress.line(state, 9), HasSubstr("loss 1.234e-05"));
}

TEST(NoProgress, WritesNothing) {
  Progress progress({.mode = ProgressMode::kNone});
  EXPECT_FALSE(progress.line(state_at(1), 0).has_value());
  EXPECT_FALSE(progress.line(state_at(400), 10).has_value());
  EXPECT_EQ(progress.make_room(), "");
}

TEST(BarProgress, DrawsAtMostTenTimesASecond) {
  Progress progress({.mode = ProgressMode::kBar});
  int drawn = 0;
  for (uint64_t step = 1; step < 400; ++step) {
    if (progress.line(state_at(step), static_cast<double>(step) / 256)) ++drawn;
  }
  EXPECT_GE(drawn, 14);
  EXPECT_LE(drawn, 16);
}

TEST(BarProgress, FitsEveryWidth) {
  for (uint32_t width = 1; width <= 200; ++width) {
    Progress progress({.mode = ProgressMode::kBar, .width = width});
    progress.line(state_at(1), 0).value();
    const std::string text = shown(*progress.line(state_at(123), 60));
    EXPECT_LT(text.size(), std::max(width, 2u)) << text;
    if (width >= 40) {
      EXPECT_THAT(text, StartsWith("step 123/400  ["));
      EXPECT_THAT(text, HasSubstr("loss 3.2541")) << width;
    }
    if (width >= 70) {
      EXPECT_THAT(text, HasSubstr("tokens/s"));
      EXPECT_THAT(text, EndsWith(" left"));
    }
  }
}

TEST(BarProgress, FillsWithTheSteps) {
  Progress progress({.mode = ProgressMode::kBar, .width = 40});
  EXPECT_EQ(shown(*progress.line(state_at(1), 0)), "step 1/400  [>           ]  loss 3.2541");
  EXPECT_EQ(shown(*progress.line(state_at(200), 1)), "step 200/400  [=====>    ]  loss 3.2541");
  EXPECT_EQ(shown(*progress.line(state_at(400), 2)), "step 400/400  [==========]  loss 3.2541");
}

TEST(BarProgress, TheLastLineEndsAndOthersDoNot) {
  Progress progress({.mode = ProgressMode::kBar});
  EXPECT_THAT(*progress.line(state_at(1), 0), Not(EndsWith("\n")));
  EXPECT_THAT(*progress.line(state_at(400), 0.001), EndsWith("\x1b[K\n"));
  EXPECT_EQ(progress.make_room(), "");
}

TEST(BarProgress, MakesRoomOnceAndIsDrawnAgain) {
  Progress progress({.mode = ProgressMode::kBar});
  EXPECT_TRUE(progress.line(state_at(1), 0).has_value());
  EXPECT_EQ(progress.make_room(), "\r\x1b[K");
  EXPECT_EQ(progress.make_room(), "");
  EXPECT_TRUE(progress.line(state_at(2), 0.001).has_value());
}

TEST(BarProgress, UnknownTotalHasNoBar) {
  Progress progress({.mode = ProgressMode::kBar});
  ProgressState state = state_at(7);
  state.total_steps = 0;
  EXPECT_EQ(shown(*progress.line(state, 0)), "step 7  loss 3.2541  41.2k tokens/s");
}

TEST(Progress, TimeLeftFollowsTheRecentPace) {
  Progress progress({.mode = ProgressMode::kPlain, .plain_interval_seconds = 0});
  double now = 0;
  std::string line;
  for (uint64_t step = 1; step <= 100; ++step) line = *progress.line(state_at(step), now += 1);
  EXPECT_THAT(line, HasSubstr("5m00s left"));
  for (uint64_t step = 101; step <= 300; ++step) line = *progress.line(state_at(step), now += 3);
  EXPECT_THAT(line, HasSubstr("5m00s left"));  // 100 steps of 3 s, whatever came before
}

TEST(Progress, AResumedRunHasNoPaceOfStepsItDidNotDo) {
  Progress progress({.mode = ProgressMode::kPlain, .plain_interval_seconds = 0});
  EXPECT_THAT(*progress.line(state_at(350), 5), Not(HasSubstr("left")));
  EXPECT_THAT(*progress.line(state_at(351), 6), HasSubstr("49s left"));
  EXPECT_THAT(*progress.line(state_at(351), 6), HasSubstr("49s left"));  // a step told twice
}

TEST(FormatRate, KeepsThreeDigits) {
  EXPECT_EQ(format_rate(0), "0.00");
  EXPECT_EQ(format_rate(0.256), "0.26");
  EXPECT_EQ(format_rate(9.996), "10.0");
  EXPECT_EQ(format_rate(99.96), "100");
  EXPECT_EQ(format_rate(999.4), "999");
  EXPECT_EQ(format_rate(999.6), "1.00k");
  EXPECT_EQ(format_rate(41234), "41.2k");
  EXPECT_EQ(format_rate(1.5e6), "1.50M");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_rate(-1), "?");
}

TEST(FormatLearningRate, IsWrittenAsPeopleDo) {
  EXPECT_EQ(format_learning_rate(3e-4), "3e-4");
  EXPECT_EQ(format_learning_rate(0.1), "0.1");
  EXPECT_EQ(format_learning_rate(0.001), "0.001");
  EXPECT_EQ(format_learning_rate(0.0012), "0.0012");
  EXPECT_EQ(format_learning_rate(6.25e-12), "6.25e-12");
  EXPECT_EQ(format_learning_rate(1e20), "1e20");
  EXPECT_EQ(format_learning_rate(1e100), "1e100");
  EXPECT_EQ(format_learning_rate(0), "0");
  EXPECT_EQ(format_learning_rate(std::numeric_limits<double>::infinity()), "Infinity");
}

TEST(Progress, TheLocaleDoesNotMatter) {
  const CommaLocale locale;
  EXPECT_TRUE(CommaLocale::c_locale_uses_comma());
  Progress progress({.mode = ProgressMode::kPlain});
  ProgressState state = state_at(1);
  state.total_steps = 4000000;
  EXPECT_EQ(progress.line(state, 0),
            "step 1/4000000  loss 3.2541  norm 1.02  lr 0.0003  41.2k tokens/s\n");
}

}  // namespace
}  // namespace lockstep::report
