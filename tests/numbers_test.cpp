#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/probe_run.h"

// Figures that are known beforehand: the worked examples, cases from practice, and comparisons with
// a plain LibTorch loop. Bounds stand beside the loops in probe_numbers.cpp, with their reasons.

namespace lockstep::promise {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::string bits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

std::string bits(const std::vector<float>& values) {
  std::string text;
  for (const float value : values) text += (text.empty() ? "" : " ") + bits(double{value});
  return text;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<double> numbers_of(const std::string& line) {
  std::vector<double> numbers;
  for (const auto& word : words_of(line)) {
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (*end == '\0') numbers.push_back(number);
  }
  return numbers;
}

/// The lines that all replicas print alike, for 1, 2, 3 and 4 of them; without "done".
Lines same_for_all(const Lines& words) {
  Lines expected = alone(words);
  for (const uint32_t count : {2u, 3u, 4u}) {
    expect_same(expected, run_probe(count, words), std::to_string(count) + " replicas");
  }
  if (expected.empty() || expected.back() != "done") ADD_FAILURE() << "the probe did not finish";
  if (!expected.empty()) expected.pop_back();
  return expected;
}

std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  if (pipe != nullptr) ::pclose(pipe);
  return text;
}

/// The folder in which replicas meet, as options of the probe.
struct MeetingPlace {
  base::TempFolder folder;
  Lines with(Lines words) const { return joined(std::move(words), {"--variant", folder.path()}); }
};

// -- The idea's examples
// ------------------------------------------------------------------------------

TEST(Numbers, TwoGradientsAverageAsFloatsDo) {
  EXPECT_THAT(same_for_all({"average_of_two"}),
              ElementsAre("mean " + bits(std::vector<float>{0.3f, -0.05f, 0.4f})));
}

TEST(Numbers, SharesOf64SamplesAre1To32And33To64) {
  const MeetingPlace place;
  const ProbeRun run = run_probe(2, place.with({"shares_of_64"}));
  ASSERT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_THAT(run.own[0], ElementsAre("first sample 0", "share 0 31 count 32 run 1"));
  EXPECT_THAT(run.own[1], ElementsAre("first sample 32", "share 32 63 count 32 run 1"));
}

TEST(Numbers, SharesOf1024SamplesOver4Are256Each) {
  const MeetingPlace place;
  const ProbeRun run = run_probe(4, place.with({"shares_of_1024"}));
  ASSERT_EQ(run.result.exit_status, 0) << run.all();
  for (int rank = 0; rank < 4; ++rank) {
    const std::string first = std::to_string(rank * 256);
    const std::string last = std::to_string(rank * 256 + 255);
    EXPECT_THAT(
        run.own[static_cast<size_t>(rank)],
        ElementsAre("first sample " + first, "share " + first + " " + last + " count 256 run 1"));
  }
}

// 8 samples, 10 steps; both sides round each of about 100 operations on numbers below 4.
TEST(Numbers, FourReplicasWithFourWeightsEndAsOneDeviceOnEightSamples) {
  const Lines lines = same_for_all({"four_by_eight"});
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_LE(numbers_of(lines.back())[0], 100 * 4 * std::ldexp(1.0, -24)) << lines.back();
  EXPECT_NE(lines[0], lines[9]);
}

TEST(Numbers, OwnGradientsDifferAndTheAveragedOnesDoNot) {
  const ProbeRun off = run_probe(4, {"averaging_off"});
  const ProbeRun on = run_probe(4, {"averaging_on"});
  ASSERT_EQ(off.result.exit_status, 0) << off.all();
  ASSERT_EQ(on.result.exit_status, 0) << on.all();
  for (size_t step = 0; step < 3; ++step) {
    std::set<std::string> own, averaged, own_parameters, parameters, drifts;
    for (size_t rank = 0; rank < 4; ++rank) {
      const auto off_words = words_of(off.own[rank].at(step));  // gradients G parameters P drift D
      const auto on_words = words_of(on.own[rank].at(step));
      own.insert(off_words[1]);
      own_parameters.insert(off_words[3]);
      drifts.insert(off_words[5]);
      EXPECT_GT(numbers_of(off_words[5])[0], 0.0) << "the copies separate on the first step";
      averaged.insert(on_words[1]);
      parameters.insert(on_words[3]);
      EXPECT_EQ(on_words[5], "0x0p+0");
    }
    EXPECT_EQ(own.size(), 4u);
    EXPECT_EQ(own_parameters.size(), 4u);
    EXPECT_EQ(drifts.size(), 1u) << "all replicas say the same drift";
    EXPECT_EQ(averaged.size(), 1u);
    EXPECT_EQ(parameters.size(), 1u);
  }
}

TEST(Numbers, OneReplicaDoesTheSameWithAveragingOnAndOff) {
  const ProbeRun off = run_probe(1, {"averaging_off"});
  const ProbeRun on = run_probe(1, {"averaging_on"});
  ASSERT_EQ(off.result.exit_status, 0) << off.all();
  EXPECT_EQ(off.own[0], on.own[0]);
}

TEST(Numbers, GradientsAreExchangedOnceAStepHoweverManyMicrobatches) {
  EXPECT_THAT(same_for_all({"exchanges"}),
              ElementsAre("exchanges 3 in 3 steps of 1 microbatches",
                          "exchanges 3 in 3 steps of 4 microbatches",
                          "exchanges 3 in 3 steps of 16 microbatches"));
  // Alone, all partials have become one before the only exchange: one partial read, one mean
  // written.
  const Lines bytes = run_probe(1, {"exchanges"}).own_of("bytes");
  EXPECT_THAT(bytes, ElementsAre(bytes.at(0), bytes.at(0), bytes.at(0)));
}

TEST(Numbers, BytesExchangedDoNotDependOnSamples) {
  // Alone, one partial is read and one mean is written in each of the 3 steps.
  const MeetingPlace alone_place;
  const Lines alone_bytes = run_probe(1, alone_place.with({"bytes_of_4"})).own_of("bytes");
  ASSERT_EQ(alone_bytes.size(), 1u);
  const double gradient = numbers_of(alone_bytes[0])[0] / (3 * 2);
  for (const uint32_t count : {1u, 2u, 4u}) {
    double bytes[2] = {};
    for (int is_large = 0; is_large < 2; ++is_large) {
      const MeetingPlace place;
      const ProbeRun run =
          run_probe(count, place.with({is_large != 0 ? "bytes_of_400" : "bytes_of_4"}));
      ASSERT_EQ(run.result.exit_status, 0) << run.all();
      for (const auto& line : run.own_of("bytes")) bytes[is_large] += numbers_of(line)[0];
    }
    EXPECT_GT(bytes[0], 0);
    // With two replicas a partial may be merged by its owner or left to the reduction: in each step
    // one mean and between one and four partials, each as large as the gradient.
    if (count == 2) {
      for (const double found : bytes) {
        EXPECT_EQ(std::fmod(found, gradient), 0) << found;
        EXPECT_GE(found, 3 * (1 + 1) * gradient);
        EXPECT_LE(found, 3 * (4 + 1) * gradient);
      }
    } else {
      EXPECT_EQ(bytes[0], bytes[1]) << count << " replicas";
    }
  }
}

// -- Against plain LibTorch
// ----------------------------------------------------------------------------

TEST(Numbers, OneMicrobatchGivesThePlainLoopsBits) {
  EXPECT_THAT(same_for_all({"against_plain_one"}),
              ElementsAre("sgd: gradients 1 losses 1 parameters 1",
                          "adamw: gradients 1 losses 1 parameters 1",
                          "adam: gradients 1 losses 1 parameters 1",
                          "two losses: gradients 1 losses 1 parameters 1",
                          "late second loss: gradients 1 losses 1 parameters 1"));
}

TEST(Numbers, ManyMicrobatchesStayWithinTheBoundOfTheirRoundings) {
  const Lines lines = same_for_all({"against_plain_many"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_LE(numbers_of(lines[0])[0], 1.0) << lines[0];
  EXPECT_THAT(lines[0], HasSubstr("differs 1")) << "both add in one order: the bound shows nothing";
}

TEST(Numbers, OnePassOf256SamplesIsWithinItsBoundOfEightTimes32) {
  const Lines expected = alone({"one_pass_of_256"});
  expect_same(expected, run_probe(8, {"one_pass_of_256"}), "8 replicas");
  EXPECT_LE(numbers_of(expected[0])[0], 1.0) << expected[0];
  // Losses near ln 10, each off by less than 100 u.
  EXPECT_LE(numbers_of(expected[0])[2], 100 * 4 * std::ldexp(1.0, -24)) << expected[0];
}

// Ten updates of at most the learning rate times 1 (AdamW) or of some 1e-1 (SGD), each rounded a
// few times in another order; parameters below 1.
TEST(Numbers, FusedOptimizersDoWhatLibTorchsDo) {
  const Lines lines = same_for_all({"against_stock"});
  ASSERT_EQ(lines.size(), 4u);
  for (const auto& line : lines)
    EXPECT_LE(numbers_of(line)[0], 10 * 8 * std::ldexp(1.0, -24)) << line;
}

// -- Cases from practice
// ----------------------------------------------------------------------------------

TEST(Numbers, DocumentsOfUnevenLengthAreWeighedByTheirTokens) {
  EXPECT_THAT(same_for_all({"uneven_documents"}),
              ElementsAre("loss 0.38756 derivative -0.159091 count 110"));
}

TEST(Numbers, AMaskedDocumentCountsForNothing) {
  EXPECT_THAT(same_for_all({"masked_document"}),
              ElementsAre("loss 0.28768 derivative -0.250000 count 4"));
}

TEST(Numbers, SevenSamplesGiveMinusEightForAnySplit) {
  EXPECT_THAT(same_for_all({"scalar"}), ElementsAre("gradient " + bits(-8)));
}

TEST(Numbers, AShortLastWindowIsDividedByItsOwnSize) {
  EXPECT_THAT(same_for_all({"short_window"}), ElementsAre("w 1.250000 3.875000 6.687500"));
}

TEST(Numbers, TheDivisorIsTheSumOfTheWeights) {
  EXPECT_THAT(same_for_all({"row_weights"}), ElementsAre("count 51.000000 gradient " + bits(1)));
}

TEST(Numbers, EvaluationCountsEverySampleOnce) {
  EXPECT_THAT(same_for_all({"evaluations"}),
              ElementsAre("right 0.752874", "right 0.752874", "right 0.752874", "right 0.752874",
                          "mean 4.500000"));
}

TEST(Numbers, HalfPrecisionSumsNeitherOverflowNorVanish) {
  const double smallest = std::ldexp(1.0, -24);
  EXPECT_THAT(same_for_all({"half_range"}),
              ElementsAre("mean " + bits(40000) + " " + bits(40000),
                          "mean " + bits(smallest) + " " + bits(smallest)));
}

TEST(Numbers, ClippingUsesTheNormOverAllParameters) {
  EXPECT_THAT(same_for_all({"clip"}), Each("norm 5.000000 update 0.6000 0.8000"));
}

TEST(Numbers, EveryMicrobatchAndStepDrawsItsOwnMasksWhoeverComputesIt) {
  std::set<std::string> expected;
  for (const uint32_t count : {1u, 2u, 4u}) {
    const ProbeRun run = run_probe(count, {"masks"});
    ASSERT_EQ(run.result.exit_status, 0) << run.all();
    const Lines lines = run.own_of("mask");
    const std::set<std::string> masks(lines.begin(), lines.end());
    ASSERT_EQ(masks.size(), 8u);
    std::set<std::string> hashes;
    for (const auto& line : lines) hashes.insert(words_of(line).back());
    EXPECT_EQ(hashes.size(), 8u) << "two masks are equal";
    if (count == 1) expected = masks;
    EXPECT_EQ(masks, expected) << count << " replicas";
  }
}

// -- What the rules say
// ------------------------------------------------------------------------------------

TEST(Numbers, AbsentIsNotZeroAndAnUntouchedParameterTakesNoStep) {
  const std::string gradient = "gradient " + bits(std::vector<float>{-0.0f, -0.0f}) + " never none";
  EXPECT_THAT(same_for_all({"absent"}), ElementsAre(gradient, gradient, "steps 2 2 0",
                                                    "never " + bits(std::vector<float>{0, 0})));
}

TEST(Numbers, MetricsAreAddedInTheOrderOfMicrobatches) {
  EXPECT_THAT(same_for_all({"metric_order"}), ElementsAre("metric " + bits(1)));
}

// Rule 5 in its own words: the flat gradient from the last parameter to the first, each padded to
// 64 bytes, in chunks of 4096; element i of a chunk in lane i mod 8; chunks by the tree.
template <typename T>
double norm_by_the_rule(const std::vector<double>& last, const std::vector<double>& first) {
  std::vector<T> flat;
  for (const auto& part : {last, first}) {
    for (const double value : part) flat.push_back(static_cast<T>(value));
    while (flat.size() % (64 / sizeof(T)) != 0) flat.push_back(0);
  }
  while (flat.size() % 4096 != 0) flat.push_back(0);
  std::vector<double> sums;
  for (size_t chunk = 0; chunk < flat.size(); chunk += 4096) {
    volatile double lanes[8] = {};  // volatile: no fused multiply-add, no other order
    for (size_t i = 0; i < 4096; ++i) {
      const volatile double square = double{flat[chunk + i]} * double{flat[chunk + i]};
      lanes[i % 8] = lanes[i % 8] + square;
    }
    sums.push_back(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                   ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
  }
  while (sums.size() > 1) {
    std::vector<double> next;
    for (size_t i = 0; i < sums.size(); i += 2) {
      next.push_back(i + 1 < sums.size() ? sums[i] + sums[i + 1] : sums[i]);
    }
    sums = next;
  }
  return std::sqrt(sums[0]);
}

// Lines "norm N", "last ...", "first ..." six times, and so on.
template <typename T>
void expect_norms_of_the_rule(const Lines& lines) {
  ASSERT_EQ(lines.size(), 5u * 8);
  for (size_t at = 0; at < lines.size(); at += 8) {
    std::vector<double> first;
    for (size_t i = at + 2; i < at + 8; ++i) {
      for (const double number : numbers_of(lines[i])) first.push_back(number);
    }
    EXPECT_EQ(first.size(), 5003u);
    EXPECT_EQ(lines[at], "norm " + bits(norm_by_the_rule<T>(numbers_of(lines[at + 1]), first)));
  }
}

TEST(Numbers, TheNormIsThatOfTheRule) {
  expect_norms_of_the_rule<float>(same_for_all({"norm_of_floats"}));
  expect_norms_of_the_rule<double>(same_for_all({"norm_of_doubles"}));
}

// Rule 10. Started without the launcher, which sets it too.
TEST(Numbers, TensorsStartAtMultiplesOf64BytesAndMklIsToldBeforeItsFirstCall) {
  const std::string said = "MKL_CBWR AUTO off: parameters 0 gradients 0";
  EXPECT_THAT(same_for_all({"alignment"}), ElementsAre(said));
  EXPECT_EQ(output_of("env -u MKL_CBWR " + probe_path() + " alignment"), said + "\ndone\n");
  EXPECT_THAT(output_of("env MKL_CBWR=AVX2 " + probe_path() + " alignment"),
              HasSubstr("MKL_CBWR AVX2"))
      << "a user's value stays";
}

// Rule 11. With profiling on, the first call of a script gives other bits than the later ones.
TEST(Numbers, HiddenStateOfLibTorchIsSetAtTheStart) {
  const Lines lines = same_for_all({"hidden_state"});
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "deterministic 1 warn only 0 fill 0 profiling 0");
  EXPECT_EQ(lines[1], "an operation without a fixed order is refused");
  EXPECT_EQ(lines[2], "filled 0") << "uninitialised memory costs a pass over it";
  for (size_t call = 4; call < lines.size(); ++call) EXPECT_EQ(lines[call], lines[3]);
}

// Rule 3 in its own words, for numbers of which little is left.
TEST(Numbers, LeavesAreAddedByTheTree) {
  const std::vector<float> values = {1e8f, 1, -1e8f, 3, 0.1f, -1e8f, 7, 1e8f, 5, 0.3f, -0.7f};
  const Lines lines = same_for_all({"tree"});
  ASSERT_EQ(lines.size(), values.size());
  for (size_t count = 1; count <= values.size(); ++count) {
    std::vector<float> level(values.begin(), values.begin() + static_cast<long>(count));
    while (level.size() > 1) {
      std::vector<float> next;
      for (size_t i = 0; i < level.size(); i += 2) {
        const volatile float sum = i + 1 < level.size() ? level[i] + level[i + 1] : level[i];
        next.push_back(float{sum});
      }
      level = next;
    }
    EXPECT_EQ(lines[count - 1], "sum " + bits(double{level[0]})) << count << " leaves";
  }
}

// seen becomes the mean of seen / 2 + m over m = 0, 1, 2: 8 -> 5 -> 3.5 -> 2.75; the counter is
// counted once a step, by those that change it.
TEST(Numbers, BuffersBecomeTheMeanOverMicrobatchesThatEndedWithABackward) {
  const Lines lines = same_for_all({"buffer_mean"});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("seen 5.000000 counter 42"));
  EXPECT_THAT(lines[1], HasSubstr("seen 3.500000 counter 43"));
  EXPECT_THAT(lines[2], HasSubstr("seen 2.750000 counter 44"));
  const std::string still = words_of(lines[0]).back();
  EXPECT_EQ(words_of(lines[2]).back(), still)
      << "an unchanged buffer keeps its bits, also of a NaN";
}

TEST(Numbers, EveryEpochUsesEverySampleOnceInAnOrderThatIsTheSameForAnyReplicaCount) {
  std::set<std::string> expected;
  for (const uint32_t count : {1u, 2u, 3u, 5u}) {
    const ProbeRun run = run_probe(count, {"samples"});
    ASSERT_EQ(run.result.exit_status, 0) << run.all();
    const Lines lines = run.own_of("sample");
    EXPECT_EQ(lines.size(), 3u * 23) << count << " replicas";
    const std::set<std::string> places(lines.begin(), lines.end());
    std::set<std::pair<double, double>> seen;  // epoch, sample
    for (const auto& line : lines) seen.emplace(numbers_of(line)[0], numbers_of(line)[1]);
    EXPECT_EQ(seen.size(), 3u * 23);
    if (count == 1) expected = places;
    EXPECT_EQ(places, expected);
  }
}

}  // namespace
}  // namespace lockstep::promise
