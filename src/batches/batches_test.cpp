#include "lockstep/batches.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<size_t> samples_of(const Batch& batch) {
  std::vector<size_t> samples;
  for (uint32_t m = 0; m < batch.microbatch_count(); ++m) {
    for (size_t index : batch.indices(m)) samples.push_back(index);
  }
  return samples;
}

TEST(Batches, EveryEpochIsACompleteAndFreshPermutation) {
  const Batches batches(103, {.global_batch = 10, .microbatch = 3, .epochs = 3, .seed = 5});
  EXPECT_EQ(batches.steps_per_epoch(), 11u);
  EXPECT_EQ(batches.step_count(), 33u);
  std::vector<std::vector<size_t>> epochs(3);
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.size(), batch.step() % 11 == 10 ? 3u : 10u);
    for (size_t index : samples_of(batch)) epochs[batch.epoch()].push_back(index);
  }
  for (const auto& epoch : epochs) {
    EXPECT_EQ(epoch.size(), 103u);
    EXPECT_EQ(std::set<size_t>(epoch.begin(), epoch.end()).size(), 103u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(epochs[0], epochs[2]);
}

TEST(Batches, TheStateIsTheStepNumberAlone) {
  Batches whole(57, {.global_batch = 8, .microbatch = 2, .epochs = 4, .seed = 9});
  Batches resumed(57, {.global_batch = 8, .microbatch = 2, .epochs = 4, .seed = 9});
  for (uint64_t start : {0u, 7u, 8u, 9u, 31u}) {  // 8 steps an epoch
    resumed.start_at(start);
    EXPECT_EQ((*resumed.begin()).step(), start);
    for (const Batch& batch : resumed) {
      ASSERT_EQ(samples_of(batch), samples_of(whole.batch(batch.step())));
    }
  }
}

TEST(Batches, TheOrderDoesNotDependOnTheMicrobatch) {
  const Batches threes(50, {.global_batch = 10, .microbatch = 3, .seed = 1});
  const Batches tens(50, {.global_batch = 10, .microbatch = 10, .seed = 1});
  for (uint64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(samples_of(threes.batch(step)), samples_of(tens.batch(step)));
  }
}

TEST(Batches, SixtyFourInOrderAreOneToThirtyTwoAndTheRest) {
  const Batches batches(64, {.global_batch = 64, .microbatch = 32, .shuffle = false});
  std::vector<size_t> first(32);
  std::iota(first.begin(), first.end(), 0);
  std::vector<size_t> second(32);
  std::iota(second.begin(), second.end(), 32);
  EXPECT_EQ(batches.batch(0).indices(0), first);
  EXPECT_EQ(batches.batch(0).indices(1), second);
}

TEST(Batches, TwelveSequencesMakeABatchOfEightAndOneOfFour) {
  const Batches batches(12, {.global_batch = 8, .microbatch = 1});
  EXPECT_EQ(batches.batch(0).size(), 8u);
  EXPECT_EQ(batches.batch(1).size(), 4u);
  EXPECT_EQ(batches.batch(1).microbatch_count(), 4u);
  EXPECT_EQ(batches.batch(1).microbatch_stride(), 8u);
  EXPECT_EQ(batches.step_count(), 2u);
}

TEST(Batches, AGlobalBatchLargerThanTheDataIsOneShortBatch) {
  const Batches batches(3, {.global_batch = ~uint64_t{0} / 2, .microbatch = uint64_t{1} << 62});
  EXPECT_EQ(batches.step_count(), 1u);
  EXPECT_EQ(batches.batch(0).size(), 3u);
  EXPECT_EQ(batches.batch(0).microbatch_count(), 1u);
}

TEST(Batches, StepsAndEpochsTogetherEndAtTheFirst) {
  EXPECT_EQ(Batches(10, {.global_batch = 5, .epochs = 3, .steps = 4}).step_count(), 4u);
  EXPECT_EQ(Batches(10, {.global_batch = 5, .epochs = 3, .steps = 9}).step_count(), 6u);
  EXPECT_EQ(Batches(10, {.global_batch = 5, .epochs = 0, .steps = 9}).step_count(), 9u);
}

TEST(Batches, ImpossibleOptionsAreRefusedWithTheirNumbers) {
  const auto message = [](uint64_t samples, BatchesOptions options) -> std::string {
    try {
      Batches(samples, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(0, {}), "");
  EXPECT_NE(message(1, {.global_batch = 0}), "");
  EXPECT_NE(message(1, {.microbatch = 0}), "");
  EXPECT_NE(message(1, {.epochs = 0}), "");
  EXPECT_NE(message(1, {.global_batch = 70'000}).find("70000"), std::string::npos);
}

TEST(Batches, AMicrobatchOutsideTheBatchIsNamed) {
  const Batches batches(4, {.global_batch = 4, .microbatch = 2});
  EXPECT_THROW(batches.batch(0).indices(2), Error);
  EXPECT_THROW(batches.batch(1), Error);
}

}  // namespace
}  // namespace lockstep
