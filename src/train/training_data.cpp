#include "src/train/training_data.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/counted.h"
#include "src/base/file.h"

namespace lockstep::train {
namespace {

TokenSplit load_tokens(TrainRequest& request) {
  TrainOptions& options = request.options;
  TokenDataOptions data;
  data.paths = options.data;
  data.context = options.gpt.context;
  data.validation_path = options.validation_path;
  data.validation_fraction = options.validation_fraction;
  data.vocabulary = request.has_vocabulary ? options.gpt.vocabulary : 0;
  TokenSplit split = load_token_data(data);
  if (request.has_vocabulary) return split;
  uint64_t needed = split.training.vocabulary_needed();
  if (split.validation) needed = std::max(needed, split.validation->vocabulary_needed());
  const uint64_t rounded = (needed + 63) / 64 * 64;
  if (rounded > INT32_MAX) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("the data in {} hold the token {}: a vocabulary of at most {} is possible. "
                    "Is it a file of another format?",
                    base::quote_path(options.data.front()), needed - 1, INT32_MAX));
  }
  const bool is_text = split.training.token_bytes() == 1;
  options.gpt.vocabulary = is_text ? 256 : static_cast<uint32_t>(rounded);
  request.has_vocabulary = true;
  return split;
}

RowSplit load_rows(TrainRequest& request) {
  TrainOptions& options = request.options;
  RowDataOptions data;
  data.paths = options.data;
  data.target = options.target;
  if (request.has_task) data.task = options.mlp.task;
  data.validation_path = options.validation_path;
  data.validation_fraction = options.validation_fraction;
  RowSplit split = load_row_data(data);
  const RowData& rows = split.training;
  options.mlp.task = rows.task();
  options.mlp.inputs = rows.input_count();
  options.mlp.outputs = rows.task() == Task::kClassification ? rows.class_count() : 1;
  request.has_task = true;
  return split;
}

}  // namespace

TrainingData load_training_data(TrainRequest& request) {
  if (request.options.model == ModelKind::kGpt) return load_tokens(request);
  return load_rows(request);
}

TrainingData load_training_data(TrainOptions& options) {
  TrainRequest request;
  request.options = options;
  request.has_vocabulary = request.has_task = true;
  TrainingData data = load_training_data(request);
  options = request.options;
  return data;
}

uint64_t sample_count(const TrainingData& data) {
  if (const auto* tokens = std::get_if<TokenSplit>(&data)) {
    return tokens->training.sequence_count();
  }
  return std::get<RowSplit>(data).training.row_count();
}

uint64_t validation_sample_count(const TrainingData& data) {
  if (const auto* tokens = std::get_if<TokenSplit>(&data)) {
    return tokens->validation ? tokens->validation->sequence_count() : 0;
  }
  const auto& rows = std::get<RowSplit>(data);
  return rows.validation ? rows.validation->row_count() : 0;
}

std::string summary(const TrainingData& data) {
  const auto* tokens = std::get_if<TokenSplit>(&data);
  const std::string& files =
      tokens != nullptr ? tokens->training.summary() : std::get<RowSplit>(data).training.summary();
  std::string text =
      fmt::format("{}; {} to train on", files,
                  base::counted(sample_count(data), tokens != nullptr ? "sequence" : "row"));
  const uint64_t held_out = validation_sample_count(data);
  if (held_out != 0) text += fmt::format(", {} held out", held_out);
  return text;
}

uint64_t memory_bytes(const TrainingData& data) {
  const auto* rows = std::get_if<RowSplit>(&data);
  if (rows == nullptr) return 0;
  const bool has_another = rows->validation && !rows->validation->shares_memory(rows->training);
  return rows->training.memory_bytes() + (has_another ? rows->validation->memory_bytes() : 0);
}

}  // namespace lockstep::train
