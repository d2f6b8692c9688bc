#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/train/preparation.h"

namespace lockstep::cli {

struct TrainingOutcome;

/// "GCC 12.2.0": what this program was built by.
std::string compiler_name();

/// Writes DIR/result.json, also of a run that failed.
void write_result(const train::PreparedTraining& training, const TrainingOutcome& outcome);

/// What other commands need of it.
struct StoredResult {
  uint64_t steps = 0;
  bool is_complete = false;
  std::optional<std::string> state_hash;
  /// The recipe as names with dots and values: "model.layers" -> "6".
  std::map<std::string, std::string> recipe;
  std::map<std::string, std::string> machine;  // likewise; no part of the recipe
  std::vector<std::string> arguments;          // of `lockstep train`, without --replicas and --out
};

/// The recipe of a run, from its JSON, as StoredResult has it.
std::map<std::string, std::string> flat_recipe(const std::string& json);

/// Throws Error(kInput) for what we did not write.
StoredResult read_result(const std::string& folder);

}  // namespace lockstep::cli
