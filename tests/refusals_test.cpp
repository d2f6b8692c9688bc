#include <gmock/gmock.h>

#include "lockstep/error.h"
#include "tests/probe_run.h"

// What must be refused, at once and by name: what was expected, what was found, what to do.

namespace lockstep::promise {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

std::string code(ErrorCode code) { return std::to_string(static_cast<int>(code)); }

/// All ranks ended by an Error of this code whose message matches; none hung, none got further.
template <typename Matcher>
void expect_all_refuse(const ProbeRun& run, ErrorCode expected, const Matcher& message) {
  EXPECT_EQ(run.result.exit_status, 3) << run.all();
  for (size_t rank = 0; rank < run.errors.size(); ++rank) {
    EXPECT_THAT(run.error_text(rank), AllOf(HasSubstr("lockstep error " + code(expected)), message))
        << "rank " << rank << "\n"
        << run.all();
    EXPECT_EQ(std::count(run.lines[rank].begin(), run.lines[rank].end(), "done"), 0);
  }
  EXPECT_LT(run.result.seconds, 30);
}

// -- Calls at a wrong place
// ----------------------------------------------------------------------------

TEST(Refusals, WrongCallsAreNamedAndChangeNothing) {
  const ProbeRun run = run_probe(1, {"wrong_calls"});
  ASSERT_EQ(run.result.exit_status, 0) << run.all();
  const std::string usage = "refused " + code(ErrorCode::kUsage) + ": ";
  EXPECT_THAT(
      run.own[0],
      ElementsAre(
          HasSubstr(usage + "average() was called without a loop over ddp.microbatches(batch)"),
          HasSubstr(usage + "the optimizer's step() was called without a new mean"),
          HasSubstr("no microbatch is open; call it inside the loop"),
          AllOf(
              HasSubstr(usage + "a backward pass reached parameter layer0.weight outside an open"),
              HasSubstr("call ddp.backward_mean() or ddp.backward_sum()")),
          HasSubstr("microbatches() was called inside a loop over microbatches: finish that loop"),
          HasSubstr("microbatches() was called inside a loop over microbatches of another model"),
          HasSubstr("evaluate() was called inside a loop over microbatches"),
          HasSubstr("average() was called inside a loop over microbatches"),
          HasSubstr("the optimizer's step() was called inside a loop over microbatches"),
          HasSubstr("count -1.000000; a finite number of 0 or more is expected"),
          HasSubstr("count nan; a finite number"), HasSubstr("the loss must be one number"),
          HasSubstr("metric 8: there are 8, counted from 0"),
          HasSubstr("microbatches() was called twice without average() in between"),
          HasSubstr("evaluate() was called between microbatches() and average()"),
          HasSubstr("average() was called without a loop"),
          HasSubstr("the optimizer's step() was called without a new mean"),
          HasSubstr("evaluate() needs at least 1 sample")));
  const Lines expected = alone({"right_calls"});
  EXPECT_EQ(difference(expected, run.lines[0]), "");
  expect_same(expected, run_probe(3, {"wrong_calls"}), "3 replicas");
}

class StrayBackward : public testing::TestWithParam<const char*> {};

// No count belongs to the gradient of a plain loss.backward(): it would be added all the same.
TEST_P(StrayBackward, IsNamedWithItsMicrobatch) {
  const std::string variant = GetParam();
  const std::string step = variant == "first-step" ? "1" : "2";
  for (const uint32_t count : {1u, 3u}) {
    expect_all_refuse(
        run_probe(count, {"stray_backward", "--variant", variant, "--no-audit"}), ErrorCode::kUsage,
        AllOf(ContainsRegex("reached parameter layer[01].(weight|bias) in microbatch [0-7] of "
                            "step " +
                            step + " on rank"),
              HasSubstr("no count belongs to its gradient"),
              HasSubstr("ddp.backward_mean() or ddp.backward_sum() in place of loss.backward()")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, StrayBackward,
                         testing::Values("instead", "beside-zero", "after", "first-step", "caught",
                                         "other-thread"),
                         [](const auto& variant) {
                           std::string name = variant.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Refusals, AGraphFromBeforeTheUpdateIsStale) {
  EXPECT_THAT(alone({"stale_graph"}), ElementsAre("stale 1", "done"));
}

// -- Models
// ----------------------------------------------------------------------------------------------

// A replica that finds it tells all: nobody trains on without it.
struct Structure {
  const char* variant;
  const char* named;
};

void PrintTo(const Structure& structure, std::ostream* out) { *out << structure.variant; }

class OtherStructure : public testing::TestWithParam<Structure> {};

TEST_P(OtherStructure, IsNamedOnAllReplicas) {
  const auto [variant, named] = GetParam();
  const ProbeRun run = run_probe(3, {"other_structure", "--variant", variant});
  expect_all_refuse(
      run, ErrorCode::kDiverged,
      AllOf(HasSubstr("wraps another model than the replica that came first: here: "),
            HasSubstr(named), HasSubstr("All replicas must construct the same model")));
}

INSTANTIATE_TEST_SUITE_P(
    All, OtherStructure,
    testing::Values(Structure{"shape", "parameter second.weight [33, 20] Float"},
                    Structure{"order", "parameter second.weight"},
                    Structure{"buffer", "buffer extra [4] Float"},
                    Structure{"dtype", "parameter first.weight [32, 20] Double"}),
    [](const auto& structure) { return std::string(structure.param.variant); });

TEST(Refusals, OtherValuesAreReplacedByRankZeros) {
  const Lines expected = alone({"other_values"});
  for (const uint32_t count : {2u, 5u}) {
    expect_same(expected, run_probe(count, {"other_values"}), std::to_string(count) + " replicas");
  }
}

TEST(Refusals, ModelsThatCannotBeExactAreNamed) {
  const ProbeRun run = run_probe(1, {"wrong_models"});
  ASSERT_EQ(run.result.exit_status, 0) << run.all();
  EXPECT_THAT(run.own[0],
              ElementsAre(HasSubstr("the model has no parameters"),
                          AllOf(HasSubstr("parameter steps is of dtype Long"),
                                HasSubstr("float32, float64, bfloat16 and float16")),
                          AllOf(HasSubstr("parameter wide is an expanded tensor"),
                                HasSubstr("register a tensor of its own")),
                          HasSubstr("parameters front and back are two tensors on the same memory"),
                          AllOf(HasSubstr("parameters table and head are two tensors"),
                                HasSubstr("register one tensor under both names"))));
  EXPECT_THAT(run.lines[0], ElementsAre("accepted", "done")) << "neighbours do not overlap";
}

TEST(Refusals, AModelThatWasMovedIsNamed) {
  const ProbeRun run = run_probe(1, {"moved_model"});
  EXPECT_THAT(run.own[0],
              ElementsAre(AllOf(HasSubstr("parameter layer0.weight has got other memory"),
                                HasSubstr("convert the model first"))));
}

TEST(Refusals, AStrangersParameterIsRefusedByTheOptimizer) {
  const ProbeRun run = run_probe(1, {"foreign_parameter"});
  EXPECT_THAT(run.own[0], ElementsAre(HasSubstr("no parameter of the wrapped model")));
}

// -- Data
// ------------------------------------------------------------------------------------------------

TEST(Refusals, ACountOfZeroNamesTheStep) {
  for (const uint32_t count : {1u, 3u}) {
    expect_all_refuse(run_probe(count, {"count_of_zero"}), ErrorCode::kData,
                      AllOf(HasSubstr("step 2: the counts of all microbatches add up to 0"),
                            HasSubstr("every target masked")));
  }
}

TEST(Refusals, IntegerBuffersOfUnequalValuesAreNamed) {
  for (const uint32_t count : {1u, 2u, 3u}) {
    expect_all_refuse(run_probe(count, {"integer_buffer"}), ErrorCode::kDiverged,
                      AllOf(HasSubstr("buffer last_index (Long) was changed to different values"),
                            HasSubstr("step 1")));
  }
}

// -- Impure functions (rule 13)
// ----------------------------------------------------------------------------

TEST(Refusals, AFunctionThatCountsItsCallsIsFoundInTheFirstStep) {
  for (const uint32_t count : {1u, 2u}) {
    expect_all_refuse(
        run_probe(count, {"impure", "--variant", "count"}), ErrorCode::kDiverged,
        AllOf(ContainsRegex("microbatch [0-9]+ is not a pure function|microbatch 0 gives another"),
              HasSubstr("layer1.weight"), HasSubstr("step 1"), HasSubstr("Look for")));
  }
}

TEST(Refusals, AFunctionOfTheRankIsFoundInTheFirstStep) {
  expect_all_refuse(run_probe(3, {"impure", "--variant", "rank"}), ErrorCode::kDiverged,
                    AllOf(HasSubstr("microbatch 0 gives another gradient of layer1.weight on rank"),
                          HasSubstr("the rank itself"), HasSubstr("step 1")));
  EXPECT_EQ(run_probe(1, {"impure", "--variant", "rank"}).result.exit_status, 0);
}

TEST(Refusals, WithoutTheAuditNobodyLooks) {
  EXPECT_EQ(run_probe(1, {"impure", "--variant", "count", "--no-audit"}).result.exit_status, 0);
}

// -- Settings (rule 11)
// ------------------------------------------------------------------------------------

struct Setting {
  const char* variant;
  const char* named;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.variant; }

class Settings : public testing::TestWithParam<Setting> {};

TEST_P(Settings, ChangedInAMicrobatchIsNamed) {
  const ProbeRun run = run_probe(1, {"setting_inside", "--variant", GetParam().variant});
  expect_all_refuse(
      run, ErrorCode::kUsage,
      AllOf(HasSubstr("during microbatch 2 of step 2 on rank 0"), HasSubstr(GetParam().named),
            HasSubstr(" and became "), HasSubstr("must stay the same")));
}

// R015: replicas with unequal settings would make bits depend on who computes what.
TEST_P(Settings, OfOneReplicaAloneIsNamed) {
  const base::TempFolder folder;
  const Lines words = {"setting_on_one", "--variant", folder.path() + "/" + GetParam().variant};
  std::filesystem::create_directory(words.back());
  const ProbeRun run = run_probe(2, words);
  expect_all_refuse(run, ErrorCode::kDiverged,
                    AllOf(HasSubstr(GetParam().named), HasSubstr("on rank 0 and"),
                          HasSubstr("on rank 1"), HasSubstr("set it alike on all replicas")));
}

INSTANTIATE_TEST_SUITE_P(All, Settings,
                         testing::Values(Setting{"threads", "the number of threads"},
                                         Setting{"dtype", "the default dtype"},
                                         Setting{"deterministic", "deterministic algorithms"},
                                         Setting{"autocast", "CPU autocast"},
                                         Setting{"flush", "floating-point control word"},
                                         Setting{"onednn", "the use of oneDNN"},
                                         Setting{"matmul", "float32 matmul precision"},
                                         Setting{"attention", "attention back ends"}),
                         [](const auto& setting) { return std::string(setting.param.variant); });

// -- Leaving, diverging
// --------------------------------------------------------------------------------------

TEST(Refusals, AReplicaThatLeavesItsLoopCostsNothing) {
  const Lines expected = alone({"one_leaves"});
  for (const uint32_t count : {2u, 3u}) {
    expect_same(expected, run_probe(count, {"one_leaves"}), std::to_string(count) + " replicas");
  }
}

TEST(Refusals, AnExceptionInTheLoopGivesTheMicrobatchBack) {
  const Lines expected = alone({"one_throws"});
  for (const uint32_t count : {2u, 3u}) {
    expect_same(expected, run_probe(count, {"one_throws"}), std::to_string(count) + " replicas");
  }
}

TEST(Refusals, ABatchThatAllLeaveIsAnErrorOnAll) {
  for (const uint32_t count : {1u, 3u}) {
    expect_all_refuse(run_probe(count, {"all_leave"}), ErrorCode::kUsage,
                      HasSubstr("all replicas left the loop over microbatches of step 2"));
  }
}

TEST(Refusals, ACopyThatWasChangedOnOneReplicaEndsTheRun) {
  expect_all_refuse(
      run_probe(2, {"one_changes_parameters"}), ErrorCode::kDiverged,
      AllOf(HasSubstr("the copies of the model differ after step 2: rank 1"),
            HasSubstr("first in parameter layer1.bias, by at most 0.25"), HasSubstr("rank == 0")));
}

// Nothing is exchanged after the last update, and the replicas end well: the launcher looks.
TEST(Refusals, CopiesThatDifferAfterTheVeryLastStepFailTheRun) {
  for (const char* variant : {"fused", "stock", "not-updated"}) {
    const ProbeRun run = run_probe(3, {"last_step_differs", "--variant", variant});
    EXPECT_EQ(run.result.exit_status, 1) << variant << run.all();
    EXPECT_THAT(
        launch::failure_report(run.result),
        AllOf(HasSubstr("rank 1"), HasSubstr("differs from rank 0's after the last update")))
        << variant;
    EXPECT_THAT(run.result.deaths, testing::IsEmpty()) << "every replica ended well";
  }
}

TEST(Refusals, CopiesThatMayDifferAtTheEndFailNoRun) {
  for (const char* variant : {"equal-fused", "equal-stock", "averaging-off", "left-early"}) {
    const ProbeRun run = run_probe(3, {"last_step_differs", "--variant", variant});
    EXPECT_EQ(run.result.exit_status, 0) << variant << run.all();
  }
}

}  // namespace
}  // namespace lockstep::promise
