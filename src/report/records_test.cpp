#include "src/report/records.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"
#include "src/report/comma_locale.h"

namespace lockstep::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kHash = "0123456789abcdef0123456789abcdef";

StepMetrics sample_metrics() {
  return {.step = 12,
          .epoch = 1,
          .loss = 3.25,
          .accuracy = {},
          .gradient_norm = 1.0 / 3,
          .learning_rate = 3e-4,
          .parameter_hash = kHash,
          .drift = 0,
          .state_hash = {},
          .validation_loss = {},
          .validation_accuracy = {}};
}

StepTimings sample_timings() {
  return {.step = 12,
          .seconds = 0.5,
          .compute = 0.25,
          .wait = 0.125,
          .reduce = 0.0625,
          .apply = 0.03,
          .hash = 0.01,
          .samples_per_second = 64,
          .tokens_per_second = 41216.5,
          .stolen = 3,
          .deaths = 1,
          .replacements = 1,
          .bytes_reduced = 18446744073709551615u,
          .bytes_sent = 7};
}

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kInput));
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string metrics_refusal(const std::string& line) {
  return refusal([&] { parse_metrics_line(line, "run/metrics.jsonl", 7); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(MetricsLine, HasTheKeysInTheirOrder) {
  StepMetrics metrics = sample_metrics();
  EXPECT_EQ(metrics_line(metrics),
            R"({"step":12,"epoch":1,"loss":3.25,"gradient_norm":0.3333333333333333,)"
            R"("learning_rate":3e-04,"parameter_hash":")" +
                kHash + R"(","drift":0})");
  metrics.validation_loss = 2.5;
  EXPECT_THAT(metrics_line(metrics), HasSubstr(R"("drift":0,"validation_loss":2.5})"));
  metrics.state_hash = kHash;
  EXPECT_THAT(metrics_line(metrics),
              HasSubstr(R"("drift":0,"state_hash":")" + kHash + R"(","validation_loss":2.5})"));
}

TEST(MetricsLine, ReadsBackToTheSameLine) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000; ++i) {
    StepMetrics metrics = sample_metrics();
    metrics.step = random();
    metrics.epoch = random();
    metrics.loss = std::bit_cast<double>(random());
    metrics.gradient_norm = std::numeric_limits<double>::infinity();
    metrics.drift = std::numeric_limits<double>::quiet_NaN();
    if (i % 2 == 0) metrics.state_hash = kHash;
    if (i % 3 == 0) metrics.validation_loss = -0.0;
    const std::string line = metrics_line(metrics);
    ASSERT_EQ(metrics_line(parse_metrics_line(line, "f", 1)), line);
  }
}

TEST(MetricsLine, WrongFieldsAreNamedWithFileAndLine) {
  const std::string good = metrics_line(sample_metrics());
  EXPECT_THAT(metrics_refusal(replaced(good, "\"loss\":3.25,", "")),
              AllOf(HasSubstr("'run/metrics.jsonl', line 7"), HasSubstr("\"loss\" is missing")));
  EXPECT_THAT(metrics_refusal(replaced(good, "3.25", "\"nan\"")),
              AllOf(HasSubstr("\"loss\""), HasSubstr("found \"nan\"")));
  EXPECT_THAT(metrics_refusal(replaced(good, "3.25", "null")), HasSubstr("found null"));
  EXPECT_THAT(metrics_refusal(replaced(good, "\"step\":12", "\"step\":-1")), HasSubstr("\"step\""));
  EXPECT_THAT(metrics_refusal(replaced(good, "\"step\":12", "\"step\":1.5")), HasSubstr("1.5"));
  EXPECT_THAT(metrics_refusal(replaced(good, kHash, "0123")), HasSubstr("32 lower-case"));
  EXPECT_THAT(metrics_refusal(replaced(good, "0123456789abcdef", "0123456789ABCDEF")),
              HasSubstr("parameter_hash"));
  EXPECT_THAT(metrics_refusal(replaced(good, "}", ",\"extra\":1}")),
              HasSubstr("\"extra\" is not known"));
  EXPECT_THAT(metrics_refusal(replaced(good, "}", ",\"step\":12}")), HasSubstr("comes twice"));
}

TEST(MetricsLine, WhatIsNoJsonIsRefused) {
  EXPECT_THAT(metrics_refusal(""), HasSubstr("no JSON"));
  EXPECT_THAT(metrics_refusal("{\"step\":1"), HasSubstr("no JSON from column 10"));
  EXPECT_THAT(metrics_refusal("[]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(metrics_refusal("{} {}"), HasSubstr("no JSON"));
  EXPECT_THAT(metrics_refusal("{\"a\":1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(metrics_refusal("{\"\xff\":1}"), HasSubstr("no JSON"));
  EXPECT_THAT(metrics_refusal(std::string(60000, '[')), HasSubstr("no JSON"));
  EXPECT_THAT(metrics_refusal(std::string(70000, ' ')), HasSubstr("65536"));
}

TEST(MetricsLine, MutatedLinesNeverCrash) {
  StepMetrics metrics = sample_metrics();
  metrics.state_hash = kHash;
  metrics.validation_loss = 1;
  const std::string good = metrics_line(metrics);
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string line = good;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % line.size();
      switch (random() % 3) {
        case 0: line[at] = static_cast<char>(random()); break;
        case 1: line.erase(at, 1 + random() % 5); break;
        default: line.insert(at, line.substr(random() % line.size(), random() % 9)); break;
      }
      if (line.empty()) line = "x";
    }
    try {
      parse_metrics_line(line, "f", 1);
    } catch (const Error& error) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(TimingsLine, HasTheKeysInTheirOrder) {
  EXPECT_EQ(timings_line(sample_timings()),
            R"({"step":12,"step_seconds":0.5,"seconds":{"compute":0.25,"wait":0.125,)"
            R"("reduce":0.0625,"apply":0.03,"hash":0.01},"samples_per_second":64,)"
            R"("tokens_per_second":41216.5,"stolen":3,"deaths":1,"replacements":1,)"
            R"("bytes_reduced":18446744073709551615,"bytes_sent":7})");
}

TEST(TimingsLine, ReadsBackToTheSameLine) {
  const std::string line = timings_line(sample_timings());
  EXPECT_EQ(timings_line(parse_timings_line(line, "f", 1)), line);
}

TEST(TimingsLine, FieldsOfThePartsAreNamedToo) {
  const std::string good = timings_line(sample_timings());
  const auto refused = [](const std::string& line) {
    return refusal([&] { parse_timings_line(line, "timings.jsonl", 2); });
  };
  EXPECT_THAT(refused(replaced(good, "\"wait\":0.125,", "")),
              HasSubstr("\"wait\" in \"seconds\" is missing"));
  EXPECT_THAT(refused(replaced(good, "\"wait\"", "\"w\":1,\"wait\"")),
              HasSubstr("\"w\" in \"seconds\" is not known"));
  EXPECT_THAT(refused(replaced(good, "\"stolen\":3", "\"stolen\":4294967296")),
              HasSubstr("0 to 4294967295"));
  EXPECT_THAT(refused(R"({"step":1,"step_seconds":1,"seconds":0.5})"),
              HasSubstr("expected an object in \"seconds\", found number"));
}

TEST(ReadMetrics, ReadsWholeFilesAndRefusesGaps) {
  const base::TempFolder folder;
  StepMetrics metrics = sample_metrics();
  std::string text;
  for (uint64_t step = 5; step < 8; ++step) {
    metrics.step = step;
    text += metrics_line(metrics) + "\n";
  }
  EXPECT_EQ(read_metrics(folder.write("m", text)).size(), 3u);
  EXPECT_TRUE(read_metrics(folder.write("m", "")).empty());
  metrics.step = 9;
  const std::string path = folder.write("m", text + metrics_line(metrics) + "\n");
  EXPECT_THAT(refusal([&] { read_metrics(path); }),
              AllOf(HasSubstr("line 4"), HasSubstr("step 9 follows step 7; expected step 8")));
}

TEST(ReadMetrics, ATornLastLineIsRefusedOrIgnored) {
  const base::TempFolder folder;
  const std::string line = metrics_line(sample_metrics());
  const std::string path = folder.write("m", line + "\n" + line.substr(0, 20));
  EXPECT_THAT(refusal([&] { read_metrics(path); }),
              AllOf(HasSubstr("line 2"), HasSubstr("did not finish")));
  EXPECT_EQ(read_metrics(path, TornLine::kIgnore).size(), 1u);
}

TEST(ReadTimings, StepsMayBeMissingButMustRise) {
  const base::TempFolder folder;
  StepTimings timings = sample_timings();
  const std::string first = timings_line(timings) + "\n";
  timings.step = 20;
  const std::string second = timings_line(timings) + "\n";
  EXPECT_EQ(read_timings(folder.write("t", first + second)).size(), 2u);
  EXPECT_THAT(refusal([&] { read_timings(folder.write("t", second + first)); }),
              HasSubstr("step 12 follows step 20"));
}

TEST(Records, TheLocaleDoesNotMatter) {
  StepMetrics metrics = sample_metrics();
  metrics.step = 1234567;
  const std::string line = metrics_line(metrics);
  const std::string times = timings_line(sample_timings());
  const CommaLocale locale;
  EXPECT_TRUE(CommaLocale::c_locale_uses_comma());
  EXPECT_EQ(metrics_line(metrics), line);
  EXPECT_EQ(timings_line(sample_timings()), times);
  EXPECT_EQ(parse_metrics_line(line, "f", 1).loss, 3.25);
  EXPECT_EQ(parse_timings_line(times, "f", 1).tokens_per_second, 41216.5);
}

TEST(RecordsDeathTest, AHashThatIsNoneIsABug) {
  StepMetrics metrics = sample_metrics();
  metrics.parameter_hash = "12";
  EXPECT_DEATH(metrics_line(metrics), "12 against 32 lower-case");
}

}  // namespace
}  // namespace lockstep::report
