#include "tests/probe_run.h"

// The same bytes for any number of replicas and whatever else has no say in the result: losses,
// norms, metrics, gradients, parameters, buffers, optimizer state, numbers drawn by the user.

namespace lockstep::promise {
namespace {

struct Theme {
  const char* name;
  Lines scenarios;
};

void PrintTo(const Theme& theme, std::ostream* out) { *out << theme.name; }

const Theme kThemes[] = {
    {"Batches",
     {"dropout", "wide", "two_microbatches", "one_microbatch", "no_backward", "zero_counts",
      "weighted_counts", "drawing", "odd_lengths"}},
    {"Structures",
     {"tied", "two_names", "unused", "unused_stock", "empty_parameters", "tiny", "frozen",
      "gradient_taken_away", "sparse", "channels_last"}},
    {"Firings", {"two_backwards", "late_second_firing", "one_fires_twice", "checkpointed"}},
    {"Buffers", {"batch_norm", "batch_norm_image", "buffers"}},
    {"Precision",
     {"autocast", "autocast_cleared", "float64", "float64_adamw", "bfloat16", "bfloat16_adamw",
      "float16", "mixed_dtypes"}},
    {"Optimizers",
     {"stock_adamw", "stock_adam", "stock_sgd", "stock_rmsprop", "fused_sgd", "fused_amsgrad",
      "groups", "clipped", "noise_in_place", "noise_on_copy"}},
    {"SeveralModelsAndEvaluation", {"gan", "evaluation"}},
};

class SameBits : public testing::TestWithParam<Theme> {};

TEST_P(SameBits, ForAnyReplicaCount) {
  const Lines expected = alone(GetParam().scenarios);
  ASSERT_GT(expected.size(), GetParam().scenarios.size());
  for (const uint32_t count : kReplicaCounts) {
    expect_same(expected, run_probe(count, GetParam().scenarios),
                std::to_string(count) + " replicas");
  }
}

// Claims in any order, partials of any shape.
TEST_P(SameBits, ForShuffledClaims) {
  const Lines expected = alone(GetParam().scenarios);
  for (const char* seed : {"1", "2", "3"}) {
    const ProbeRun run = run_probe(3, joined(GetParam().scenarios, {"--shuffle-claims", seed}));
    expect_same(expected, run, std::string("seed ") + seed);
  }
}

TEST_P(SameBits, ForAnyBucketSize) {
  const Lines expected = alone(GetParam().scenarios);
  for (const char* bytes : {"1", "40000", "100000", "1000000000"}) {
    const ProbeRun run = run_probe(2, joined(GetParam().scenarios, {"--bucket-bytes", bytes}));
    expect_same(expected, run, std::string("buckets of ") + bytes);
  }
}

TEST_P(SameBits, ForShiftedInputs) {
  const Lines expected = alone(GetParam().scenarios);
  for (const char* shift : {"4", "8", "28"}) {
    const ProbeRun run = run_probe(2, joined(GetParam().scenarios, {"--shift", shift}));
    expect_same(expected, run, std::string("inputs shifted by ") + shift);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SameBits, testing::ValuesIn(kThemes),
                         [](const auto& theme) { return std::string(theme.param.name); });

TEST(SameBits, WhenOneReplicaIsSlow) {
  const Lines words = {"long_run", "batch_norm", "late_second_firing"};
  const Lines expected = alone(words);
  for (const char* rank : {"0", "2"}) {
    expect_same(expected, run_probe(3, joined(words, {"--slow", rank, "20"})), rank);
  }
}

// Without the audit nothing is computed twice; the audit must leave no trace either.
TEST(SameBits, WithoutTheAudit) {
  const Lines words = {"dropout", "batch_norm", "one_fires_twice", "buffers"};
  const Lines expected = alone(words);
  for (const uint32_t count : {1u, 3u}) {
    expect_same(expected, run_probe(count, joined(words, {"--no-audit"})), std::to_string(count));
  }
}

// LibTorch keeps bfloat16 copies of weights under autocast: without clearing, those of the last
// step.
TEST(SameBits, WhetherTheUserClearsTheAutocastCacheOrNot) {
  const auto without_name = [](Lines lines, const std::string& name) {
    for (auto& line : lines) {
      if (line.starts_with(name + " ")) line = line.substr(name.size());
    }
    return lines;
  };
  EXPECT_EQ(difference(without_name(alone({"autocast"}), "autocast"),
                       without_name(alone({"autocast_cleared"}), "autocast_cleared")),
            "");
}

// Fused updates run over stretches of neighbouring parameters, or, for gradients that the user put
// in place, one by one: padded to 64 bytes, both compute the same.
TEST(SameBits, WhetherGradientsAreChangedInPlaceOrReplaced) {
  const auto without_name = [](Lines lines) {
    for (auto& line : lines) {
      for (const char* name : {"noise_in_place ", "noise_on_copy "}) {
        if (line.starts_with(name)) line = line.substr(std::string(name).size());
      }
    }
    return lines;
  };
  EXPECT_EQ(
      difference(without_name(alone({"noise_in_place"})), without_name(alone({"noise_on_copy"}))),
      "");
}

// A mean that waits for its update is kept, with what user code wrote to it.
TEST(SameBits, WhetherSomethingIsEvaluatedBeforeTheUpdateOrNot) {
  for (const std::string optimizer : {"stock", "fused"}) {
    const Lines expected = alone({"evaluation_before_update", "--variant", "plain-" + optimizer});
    Lines evaluations;
    for (const uint32_t count : {1u, 2u, 3u}) {
      const ProbeRun run =
          run_probe(count, {"evaluation_before_update", "--variant", "evaluated-" + optimizer});
      expect_same(expected, run, optimizer + ", " + std::to_string(count) + " replicas");
      if (count == 1) evaluations = run.own[0];
      ASSERT_FALSE(evaluations.empty());
      for (const Lines& own : run.own) EXPECT_EQ(difference(evaluations, own), "") << optimizer;
    }
  }
}

// -- Deaths
// -----------------------------------------------------------------------------------------

// The living print what one replica prints, the dead printed a part of it.
void expect_same_but_for_the_dead(const Lines& expected, const ProbeRun& run,
                                  const std::string& what) {
  EXPECT_EQ(run.result.exit_status, 0) << what << "\n" << run.all();
  std::vector<bool> is_dead(run.lines.size());
  for (const auto& death : run.result.deaths) {
    EXPECT_EQ(death.cause, launch::DeathCause::kDrill) << what << "\n" << run.all();
    is_dead[death.rank] = true;
  }
  for (size_t rank = 0; rank < run.lines.size(); ++rank) {
    if (!is_dead[rank]) {
      EXPECT_EQ(difference(expected, run.lines[rank]), "") << what << ", rank " << rank;
    } else {
      const auto& lines = run.lines[rank];
      ASSERT_LT(lines.size(), expected.size()) << what;
      EXPECT_EQ(
          difference({expected.begin(), expected.begin() + static_cast<long>(lines.size())}, lines),
          "")
          << what << ", dead rank " << rank;
    }
  }
}

class SameBitsAfterDeath : public testing::TestWithParam<const char*> {};

// Some points a replica comes to only when it is faster than the others: it dies at the first
// chance from step 2 on, and there are many steps.
TEST_P(SameBitsAfterDeath, AtPoint) {
  const Lines words = {"many_steps"};
  const Lines expected = alone(words);
  std::string drills;
  for (int step = 2; step <= 60; ++step) {
    drills += (drills.empty() ? "1@" : ",1@") + std::to_string(step) + ":" + GetParam();
  }
  bool has_died = false;
  for (int attempt = 0; attempt < 3 && !has_died; ++attempt) {
    const ProbeRun run = run_probe(3, words, {.kill = drills});
    expect_same_but_for_the_dead(expected, run, GetParam());
    has_died = !run.result.deaths.empty();
  }
  EXPECT_TRUE(has_died) << "rank 1 never came to " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(All, SameBitsAfterDeath,
                         testing::Values("claim", "leaf-done", "slot-written", "live",
                                         "child-freed", "bucket-claimed", "bucket-reduced",
                                         "commit-claimed", "record-written", "committed",
                                         "applying", "applied"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SameBitsAfterDeath, OfAnyRankAndOfAllButOne) {
  const Lines words = {"long_run", "batch_norm", "unused", "gan", "evaluation"};
  const Lines expected = alone(words);
  expect_same_but_for_the_dead(expected, run_probe(2, words, {.kill = "0@3"}), "0@3");
  expect_same_but_for_the_dead(expected, run_probe(3, words, {.kill = "2@1"}), "2@1");
  const ProbeRun last = run_probe(4, words, {.kill = "0@2,1@5:applying,3@9:applying"});
  EXPECT_EQ(last.result.deaths.size(), 3u) << last.all();
  expect_same_but_for_the_dead(expected, last, "all but one");
}

}  // namespace
}  // namespace lockstep::promise
