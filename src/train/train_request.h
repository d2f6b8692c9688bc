#pragma once

#include "src/train/train_options.h"

namespace lockstep::train {

/// What was asked for, before data and machine are looked at. What was not given has its default;
/// the flags say where the default still depends on something.
struct TrainRequest {
  TrainOptions options;
  bool has_replicas = false;
  bool has_global_batch = false;
  bool has_vocabulary = false;  // gpt
  bool has_task = false;        // mlp
  bool has_seed = false;
  bool has_length = false;  // --steps or --epochs
  bool has_out = false;
};

/// Global batch, replicas, learning rate and drills, as far as they follow from each other: decides
/// what the dials leave open and refuses what contradicts itself. To be called once more when the
/// number of replicas is known (has_replicas set). Throws Error(kUsage).
void settle_batch(TrainRequest& request);

}  // namespace lockstep::train
