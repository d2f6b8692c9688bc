#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/result_file.h"
#include "src/report/records.h"

namespace lockstep::cli {

/// A folder that `lockstep train` wrote, as far as it is there: a run that was killed has no
/// result.json and perhaps a torn last line.
struct StoredRun {
  std::string folder;
  std::vector<report::StepMetrics> metrics;  // steps 1, 2, ...
  std::optional<StoredResult> result;
};

/// Throws Error(kInput) where the folder holds no run.
StoredRun read_run(const std::string& folder);

/// Where and how two runs differ; steps count from 1.
struct StepDifference {
  uint64_t step = 0;
  std::string what;  // "loss", "parameter_hash"
  std::string left;
  std::string right;
};

/// The first step of `first` .. `last` at which two runs that both have it differ. What only one of
/// them took (a validation loss, a hash of the state) does not count.
std::optional<StepDifference> first_difference(const StoredRun& left, const StoredRun& right,
                                               uint64_t first = 1, uint64_t last = UINT64_MAX);

/// "model.layers: 6 in A, 4 in B". Empty: the recipes are equal, or one is not known.
std::vector<std::string> recipe_differences(const StoredRun& left, const StoredRun& right);

/// The first parameter, in the order of the model, whose hash differs, and in which step that was
/// seen: hashes of single parameters are taken as often as --hash-every says, and at the end.
struct ParameterDifference {
  uint64_t step = 0;
  std::string name;
  size_t differing = 0;  // parameters in all
  size_t count = 0;
};
std::optional<ParameterDifference> first_parameter_difference(const StoredRun& left,
                                                              const StoredRun& right);

/// All that is known about why two runs differ, as lines.
std::vector<std::string> explain(const StoredRun& left, const StoredRun& right,
                                 const StepDifference& difference);

}  // namespace lockstep::cli
