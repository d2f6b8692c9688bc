#include "src/cli/step_log.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"

namespace lockstep::cli {
namespace {

using exchange::ControlBlock;
using exchange::ProcessState;
using exchange::StepReport;
using testing::ElementsAre;
using testing::HasSubstr;

StepReport report_of(uint64_t step) {
  StepReport report{};
  report.step = step;
  report.epoch = step / 3;
  report.loss = 5.0 / static_cast<double>(step);
  report.gradient_norm = 0.5;
  report.learning_rate = 3e-4;
  report.samples = 8;
  report.parameter_hash = {step, 7};
  report.seconds = 0.5;
  report.compute = 0.25;
  return report;
}

StepReport end_of(uint64_t step) {
  StepReport report = report_of(step);
  report.is_last = 1;
  report.has_state_hash = 1;
  report.state_hash = {1, 2};
  return report;
}

// A group whose replicas are this test.
class Group {
 public:
  explicit Group(uint32_t replicas, uint64_t last_step, bool averaging = true)
      : control_(std::make_unique<ControlBlock>()),
        log({.folder = folder_.path(),
             .last_step = last_step,
             .tokens_per_sample = 4,
             .averaging = averaging}) {
    control_->replica_count = replicas;
    for (uint32_t rank = 0; rank < replicas; ++rank) {
      control_->seat[rank] = rank + 1;
      control_->processes[rank + 1].state = static_cast<uint32_t>(ProcessState::kRegistered);
    }
  }

  void send(uint32_t rank, const StepReport& report) {
    ASSERT_TRUE(exchange::push_report(*control_, rank, report));
  }
  void die(uint32_t rank, uint64_t step, int wait_status = 9) {
    exchange::ProcessEntry& entry = control_->processes[rank + 1];
    entry.step = step;
    entry.wait_status = wait_status;
    entry.state = static_cast<uint32_t>(ProcessState::kEnded);
  }
  std::vector<uint64_t> collect() {
    std::vector<uint64_t> steps;
    for (const LoggedStep& logged : log.collect(*control_)) steps.push_back(logged.metrics.step);
    return steps;
  }
  std::string refusal() {
    try {
      collect();
    } catch (const Error& error) {
      code = error.code();
      return error.what();
    }
    return "";
  }
  std::vector<report::StepMetrics> metrics() const {
    return report::read_metrics(folder_.path("metrics.jsonl"));
  }
  std::vector<report::StepTimings> timings() const {
    return report::read_timings(folder_.path("timings.jsonl"));
  }

  ErrorCode code = ErrorCode::kUsage;

 private:
  base::TempFolder folder_;
  std::unique_ptr<ControlBlock> control_;

 public:
  StepLog log;
};

TEST(StepLog, WritesAStepWhenEveryReplicaHasReportedIt) {
  Group group(2, 9);
  group.send(1, report_of(1));
  group.send(1, report_of(2));
  EXPECT_THAT(group.collect(), ElementsAre());
  group.send(0, report_of(1));
  EXPECT_THAT(group.collect(), ElementsAre(1));
  group.send(0, report_of(2));
  group.send(0, report_of(3));
  EXPECT_THAT(group.collect(), ElementsAre(2));
  ASSERT_EQ(group.metrics().size(), 2u);
  EXPECT_EQ(group.metrics()[1].loss, 2.5);
  EXPECT_EQ(group.metrics()[1].parameter_hash, "00000000000000070000000000000002");
  EXPECT_EQ(group.log.step_count(), 2u);
  EXPECT_FALSE(group.log.is_complete());
}

TEST(StepLog, TakesTheMaximumOfTimesAndTheSumOfCounts) {
  Group group(3, 9);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    StepReport report = report_of(1);
    report.seconds = 1.0 + rank;
    report.compute = 3.0 - rank;
    report.wait = rank == 1 ? 0.5 : 0.25;
    report.stolen = rank;
    report.bytes_reduced = 10;
    group.send(rank, report);
  }
  group.collect();
  const auto timings = group.timings();
  ASSERT_EQ(timings.size(), 1u);
  EXPECT_EQ(timings[0].seconds, 3.0);
  EXPECT_EQ(timings[0].compute, 3.0);
  EXPECT_EQ(timings[0].wait, 0.5);
  EXPECT_EQ(timings[0].stolen, 3u);
  EXPECT_EQ(timings[0].bytes_reduced, 30u);
  EXPECT_EQ(timings[0].samples_per_second, 8 / 3.0);
  EXPECT_EQ(timings[0].tokens_per_second, 32 / 3.0);
}

TEST(StepLog, GoesOnWithoutTheDead) {
  Group group(3, 9);
  for (const uint32_t rank : {0u, 1u, 2u}) group.send(rank, report_of(1));
  group.send(2, report_of(2));  // its last word
  group.die(2, 2);
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(2));
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(3));
  EXPECT_THAT(group.collect(), ElementsAre(1, 2, 3));
  const auto timings = group.timings();
  ASSERT_EQ(timings.size(), 3u);
  EXPECT_EQ(timings[0].deaths, 0u);
  EXPECT_EQ(timings[1].deaths, 1u);
  EXPECT_EQ(timings[2].deaths, 0u);
}

TEST(StepLog, WritesNoStepThatOnlyTheDeadHaveSeenTwice) {
  Group group(2, 9);
  group.send(0, report_of(1));
  group.die(0, 1);
  EXPECT_THAT(group.collect(), ElementsAre());  // rank 1 is not through
  group.send(1, report_of(1));
  EXPECT_THAT(group.collect(), ElementsAre(1));
  EXPECT_THAT(group.collect(), ElementsAre());
}

TEST(StepLog, TheLastLineWaitsForTheStateHash) {
  Group group(2, 2);
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(1));
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(2));
  EXPECT_THAT(group.collect(), ElementsAre(1));
  group.send(1, end_of(2));
  EXPECT_THAT(group.collect(), ElementsAre());
  group.send(0, end_of(2));
  EXPECT_THAT(group.collect(), ElementsAre(2));
  EXPECT_TRUE(group.log.is_complete());
  EXPECT_EQ(group.metrics()[1].state_hash, "00000000000000020000000000000001");
}

TEST(StepLog, TheEndCountsNoTimeTwice) {
  Group group(1, 1);
  group.send(0, report_of(1));
  group.send(0, end_of(1));
  group.collect();
  EXPECT_EQ(group.timings().at(0).seconds, 0.5);
  EXPECT_EQ(group.log.samples_per_second(), 16);
  EXPECT_EQ(group.log.tokens_per_second(), 64);
}

TEST(StepLog, ADeathBeforeTheEndLeavesTheStateHashToTheOthers) {
  Group group(2, 1);
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(1));
  group.die(0, 1);
  EXPECT_THAT(group.collect(), ElementsAre());
  group.send(1, end_of(1));
  EXPECT_THAT(group.collect(), ElementsAre(1));
  EXPECT_TRUE(group.log.is_complete());
}

TEST(StepLog, WithoutAnyEndTheRunIsNotComplete) {
  Group group(1, 1);
  group.send(0, report_of(1));
  group.die(0, 1, 0);
  EXPECT_THAT(group.collect(), ElementsAre(1));
  EXPECT_FALSE(group.log.is_complete());
}

TEST(StepLog, ReplicasThatDisagreeEndTheRun) {
  struct Case {
    const char* what;
    std::function<void(StepReport&)> change;
  };
  const Case cases[] = {
      {"loss", [](StepReport& report) { report.loss = std::nextafter(report.loss, 9); }},
      {"gradient norm", [](StepReport& report) { report.gradient_norm = -0.0; }},
      {"learning rate", [](StepReport& report) { report.learning_rate = 1; }},
      {"drift", [](StepReport& report) { report.drift = 1e-30; }},
      {"parameters", [](StepReport& report) { report.parameter_hash.high = 8; }},
  };
  for (const Case& disagreement : cases) {
    Group group(3, 9);
    for (uint32_t rank = 0; rank < 3; ++rank) group.send(rank, report_of(1));
    StepReport other = report_of(2);
    disagreement.change(other);
    group.send(0, report_of(2));
    group.send(1, report_of(2));
    group.send(2, other);
    const std::string message = group.refusal();
    EXPECT_EQ(group.code, ErrorCode::kDiverged);
    EXPECT_THAT(message, HasSubstr("step 2"));
    EXPECT_THAT(message, HasSubstr(std::string("disagree about the ") + disagreement.what));
    EXPECT_THAT(message, HasSubstr("on rank 0"));
    EXPECT_THAT(message, HasSubstr("on rank 2"));
    EXPECT_LE(group.metrics().size(), 1u);
  }
}

TEST(StepLog, DisagreementAboutTheEndIsSeenToo) {
  Group group(2, 1);
  for (const uint32_t rank : {0u, 1u}) group.send(rank, report_of(1));
  group.send(0, end_of(1));
  StepReport other = end_of(1);
  other.state_hash.low = 9;
  group.send(1, other);
  EXPECT_THAT(group.refusal(), HasSubstr("disagree about the state"));
}

TEST(StepLog, EqualNaNsAgree) {
  Group group(2, 9);
  StepReport report = report_of(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  group.send(0, report);
  group.send(1, report);
  EXPECT_THAT(group.collect(), ElementsAre(1));
  EXPECT_TRUE(std::isnan(group.metrics()[0].loss));
}

TEST(StepLog, WithoutAveragingRankZeroIsWritten) {
  Group group(2, 1, /*averaging=*/false);
  StepReport other = report_of(1);
  other.loss = 99;
  StepReport other_end = end_of(1);
  other_end.loss = 99;
  other_end.state_hash = {9, 9};
  group.send(1, other);
  group.send(1, other_end);
  EXPECT_THAT(group.collect(), ElementsAre());
  group.send(0, report_of(1));
  group.send(0, end_of(1));
  EXPECT_THAT(group.collect(), ElementsAre(1));
  EXPECT_EQ(group.metrics()[0].loss, 5);
  EXPECT_EQ(group.metrics()[0].state_hash, "00000000000000020000000000000001");
}

TEST(StepLog, RefusesAStepThatIsWrittenOrBeyondTheLast) {
  Group group(1, 2);
  group.send(0, report_of(1));
  group.collect();
  group.send(0, report_of(1));
  EXPECT_THAT(group.refusal(), HasSubstr("rank 0 reports step 1"));
  EXPECT_EQ(group.code, ErrorCode::kInternal);
  group.send(0, report_of(3));
  EXPECT_THAT(group.refusal(), HasSubstr("rank 0 reports step 3"));
}

TEST(StepLog, AnEarlyEndWritesNothingTwice) {
  Group group(1, 5);
  group.send(0, report_of(1));
  group.collect();
  group.send(0, end_of(1));
  EXPECT_THAT(group.collect(), ElementsAre());
  EXPECT_FALSE(group.log.is_complete());
  EXPECT_EQ(group.metrics().size(), 1u);
}

TEST(StepLog, AFullRingIsReadInOrderAndFillsAgain) {
  Group group(2, 10'000);
  uint64_t step = 0;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < exchange::ReportRing::kCapacity; ++i) {
      ++step;
      group.send(0, report_of(step));
      group.send(1, report_of(step));
    }
    EXPECT_EQ(group.collect().size(), exchange::ReportRing::kCapacity);
  }
  const auto metrics = group.metrics();  // refuses gaps
  ASSERT_EQ(metrics.size(), step);
  EXPECT_EQ(metrics.back().loss, 5.0 / static_cast<double>(step));
}

TEST(StepLog, DropsWhatTheFilesHeldBefore) {
  const base::TempFolder folder;
  folder.write("metrics.jsonl", "old\n");
  folder.write("timings.jsonl", "old\n");
  const StepLog log({.folder = folder.path(), .last_step = 1});
  EXPECT_EQ(std::filesystem::file_size(folder.path("metrics.jsonl")), 0u);
  EXPECT_EQ(std::filesystem::file_size(folder.path("timings.jsonl")), 0u);
}

}  // namespace
}  // namespace lockstep::cli
