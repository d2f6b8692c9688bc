#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "src/train/row_data.h"
#include "src/train/token_data.h"
#include "src/train/train_request.h"

namespace lockstep::train {

/// What a model is trained on: tokens for a GPT, rows for an MLP.
using TrainingData = std::variant<TokenSplit, RowSplit>;

/// Loads the data that the options name, and completes the options by what the data decide: the
/// vocabulary of a GPT, inputs, outputs and task of an MLP. Throws Error(kUsage), Error(kInput).
TrainingData load_training_data(TrainRequest& request);

/// The same where everything is decided already.
TrainingData load_training_data(TrainOptions& options);

uint64_t sample_count(const TrainingData& data);
uint64_t validation_sample_count(const TrainingData& data);  // 0: nothing is held out

/// "12 text files, 13723456 tokens; 53607 sequences to train on, 100 held out".
std::string summary(const TrainingData& data);

/// What the tables hold in memory, in each replica; 0 where files are mapped and shared.
uint64_t memory_bytes(const TrainingData& data);

}  // namespace lockstep::train
