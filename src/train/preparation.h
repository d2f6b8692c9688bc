#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/system.h"
#include "src/exchange/shared_memory.h"
#include "src/train/train_request.h"

// What the launcher finds out and decides before the first replica starts.

namespace lockstep::train {

/// Memory of one run, in bytes: what certainly is needed, and what can only be estimated.
struct MemoryNeed {
  uint64_t parameters = 0;           // numbers, not bytes
  uint64_t state_per_replica = 0;    // parameters and optimizer state
  uint64_t slots_per_replica = 0;    // gradients of microbatches on their way
  uint64_t activations = 0;          // of one microbatch; an estimate
  uint64_t program_per_replica = 0;  // LibTorch itself; an estimate
  uint64_t data_per_replica = 0;
  uint64_t shared = 0;  // the averaged gradient

  uint64_t per_replica() const {
    return state_per_replica + slots_per_replica + activations + program_per_replica +
           data_per_replica;
  }
};

/// `data_bytes`: of the data in each replica, where they are not mapped from their files.
MemoryNeed memory_need(const TrainOptions& options, uint32_t replicas, uint64_t data_bytes = 0);

struct PreparedTraining {
  TrainOptions options;  // all decided
  uint64_t step_count = 0;
  uint64_t steps_per_epoch = 0;
  std::string data_summary;  // "12 text files, 13723456 tokens; 53607 sequences, 100 held out"
  std::string length_note;   // why there are so many steps, where nobody said; else empty
  std::vector<std::string> warnings;
  base::CpuBudget cpu;
  MemoryNeed memory;
  std::string recipe;  // a JSON object
};

/// Loads the data, decides what was left open, and refuses what cannot work. Does not touch the out
/// folder. `root`: see base/system.h. Throws Error(kUsage), Error(kInput), Error(kEnvironment).
PreparedTraining prepare_training(TrainRequest request, const std::string& root = "/");

/// Where a run writes. As long as this lives, no other run gets the folder.
struct OutFolder {
  std::string path;
  exchange::Descriptor
      lock;  // of the folder itself: nothing is left behind. Empty: the file system has none
};

/// Makes the folder and sees that it can be written to and holds no other run. Empty `out`: makes
/// runs/WHAT-DATE-TIME, a new one. Throws Error(kUsage), Error(kInput).
OutFolder prepare_out_folder(const std::string& out, std::string_view what);

}  // namespace lockstep::train
