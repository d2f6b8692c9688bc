#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "src/base/hash.h"
#include "src/replica/flat_model.h"

namespace lockstep::internal {

/// XXH3-128 over parameters, buffers and the optimizer's state of each parameter, in order of
/// registration: names, dtypes, shapes and elements in row-major order, so that it does not depend
/// on how tensors lie in memory. For AdamW, Adam, SGD, RMSprop and Adagrad, ours or LibTorch's; of
/// other optimizers only that a parameter has a state is seen.
base::Hash128 state_hash(const FlatModel& model, const torch::optim::Optimizer& optimizer);

/// Name and hash (32 hexadecimal digits) of each parameter, in order of registration.
std::vector<std::pair<std::string, std::string>> parameter_hashes(const FlatModel& model);

}  // namespace lockstep::internal
