#pragma once

#include <string>

#include "src/train/training_data.h"

namespace lockstep::train {

/// What the bits of a run depend on (design.md section 1), as one JSON object: model, data by
/// content, optimizer and schedule, batch, threads, precision, LibTorch, and the variables that
/// steer kernels as the replicas get them. Neither replicas nor paths belong to it.
std::string recipe_json(const TrainOptions& options, const TrainingData& data);

/// "2.13.0+cpu", or "none" in a build without LibTorch.
std::string torch_version();

}  // namespace lockstep::train
