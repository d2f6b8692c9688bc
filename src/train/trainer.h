#pragma once

#include "src/train/train_options.h"

namespace lockstep::train {

/// One replica of `lockstep train`: trains as the options say, sends one report a step to the
/// launcher. The lowest living rank writes DIR/sample.txt and DIR/parameter_hashes.jsonl. Throws
/// lockstep::Error.
void train_replica(const TrainOptions& options);

}  // namespace lockstep::train
