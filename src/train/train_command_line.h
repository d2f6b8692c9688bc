#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/train/train_request.h"

// The options of `lockstep train` as text. Numbers are read here, not by CLI11, so that every
// refusal says what was expected and what was found, whatever the locale.

namespace lockstep::train {

/// Reads the words after `lockstep train` and the file that --config names; a word wins over the
/// file, a later word over an earlier one. Throws Error(kUsage), or Error(kInput) about the file.
TrainRequest parse_train_arguments(const std::vector<std::string>& arguments);

/// The options of a replica: what the launcher decided and train_arguments() wrote.
TrainOptions parse_worker_arguments(const std::vector<std::string>& arguments);

enum class ArgumentChoice {
  kAll,     ///< every option, the hidden ones too
  kRepeat,  ///< what somebody types to repeat the recipe: neither defaults nor --replicas, --out
};

/// Words that parse_train_arguments() reads as the same options. REQUIRES: all is decided.
std::vector<std::string> train_arguments(const TrainOptions& options, ArgumentChoice choice);

std::string train_help();

/// The words that the options of several values stand for, in the order of their enumerators.
std::string_view word_of(ModelKind kind);
std::string_view word_of(Task task);
std::string_view word_of(OptimizerKind kind);
std::string_view word_of(Decay decay);
std::string_view word_of(LearningRateScaling scaling);
std::string_view word_of(Precision precision);

}  // namespace lockstep::train
