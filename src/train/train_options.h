#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/train/row_data.h"

// What `lockstep train` is asked to do, parsed and checked without LibTorch: the thin launcher
// refuses mistakes before any replica starts, and every replica parses the same arguments again.

namespace lockstep::train {

enum class OptimizerKind { kAdamW, kSgd };
enum class Decay { kNone, kCosine, kLinear };
enum class LearningRateScaling { kNone, kLinear, kSqrt };
enum class Precision { kFp32, kBf16 };
enum class ModelKind { kGpt, kMlp };

struct GptSizes {
  uint32_t layers = 6;
  uint32_t heads = 6;
  uint32_t width = 384;
  uint32_t context = 256;
  uint32_t vocabulary = 256;  // 256 for text; of .bin files what they need, rounded up to 64
  double dropout = 0.0;
};

struct MlpSizes {
  uint32_t layers = 2;   // linear layers, with ReLU between
  uint32_t width = 128;  // of all but the last
  double dropout = 0.0;  // after each ReLU
  Task task = Task::kClassification;
  uint32_t inputs = 0;   // these two as the data have them
  uint32_t outputs = 0;  // classes, or 1
};

struct TrainOptions {
  std::vector<std::string> data;
  std::optional<std::string> validation_path;
  double validation_fraction = 0.0;  // 0: nothing is held out

  ModelKind model = ModelKind::kGpt;
  GptSizes gpt;
  MlpSizes mlp;
  std::string target;  // of CSV: the column to predict

  uint32_t replicas = 1;       // as decided, see replica_reason
  std::string replica_reason;  // "2 physical cores in the affinity mask; ..."
  uint32_t threads = 1;
  uint64_t global_batch = 16;
  uint64_t microbatch = 1;              // by model kind
  std::optional<uint64_t> per_replica;  // the dials, where they were given
  uint64_t accumulate = 1;

  uint64_t steps = 0;  // as in BatchesOptions: 0 where epochs decide
  uint64_t epochs = 0;
  uint64_t seed = 0;
  bool seed_was_chosen = false;  // not given: one was chosen once, and is printed and stored

  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double learning_rate = 3e-4;  // as used, scaling applied
  double base_learning_rate = 3e-4;
  LearningRateScaling learning_rate_scaling = LearningRateScaling::kNone;
  uint64_t base_batch = 0;
  uint64_t warmup = 0;  // steps
  Decay decay = Decay::kNone;
  double weight_decay = 0.01;
  double momentum = 0.9;   // of SGD
  double clip_norm = 0.0;  // 0: off
  Precision precision = Precision::kFp32;

  bool averaging = true;
  uint64_t audit = 0;       // every so many steps beside the first; 0: only the first
  uint64_t hash_every = 0;  // steps; 0: only at the end
  uint64_t evaluate_every = 0;
  uint64_t evaluation_microbatch = 1;
  uint64_t sample = 0;             // tokens of generated text at the end; 0: none
  std::vector<std::string> kills;  // RANK@STEP[:POINT]
  uint64_t bucket_bytes = 0;       // hidden: no influence on bits, tests show it
  uint64_t shuffle_claims = 0;     // hidden: the same
  uint64_t stop_after = 0;         // hidden: ends after this step of a longer run; 0: does not

  std::string out;
  std::string progress = "auto";
  std::string log_folder;  // --log-dir; empty: none. This and the next: the launcher's alone
  std::string pin = "auto";
  std::string tee = "all";         // whose lines are shown; read by the launcher
  uint64_t timeout_seconds = 300;  // 0: never
};

/// The learning rate of step `step` (counted from 0) of `step_count`: linear warm-up over
/// options.warmup steps, then the decay, which reaches 0 at step_count.
/// Source: Loshchilov and Hutter 2017 for the cosine.
double learning_rate_at(const TrainOptions& options, uint64_t step, uint64_t step_count);

/// The numbers that a model of these sizes learns: as gpt.cpp and mlp.cpp lay it out.
uint64_t gpt_parameter_count(const GptSizes& sizes);
uint64_t mlp_parameter_count(const MlpSizes& sizes);
uint64_t parameter_count(const TrainOptions& options);

/// Answers are right or wrong, so that there is an accuracy.
bool has_classes(const TrainOptions& options);

/// Microbatches of a full step.
uint64_t microbatch_count(const TrainOptions& options);

}  // namespace lockstep::train
