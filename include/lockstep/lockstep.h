#pragma once

// Everything: exact data-parallel training for LibTorch.

#include "lockstep/all_reduce.h"
#include "lockstep/batches.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "lockstep/optimizers.h"
