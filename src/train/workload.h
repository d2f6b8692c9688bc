#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "src/train/train_options.h"

namespace lockstep::train {

/// A model with its data, as the trainer sees them: samples by number, and their loss.
class Workload {
 public:
  enum class Part { kTraining, kValidation };

  /// Of some samples, summed over them.
  struct Loss {
    torch::Tensor sum;
    double count = 0;               // what it is to be divided by: tokens or rows
    std::optional<double> correct;  // of these, where there are classes to be right about
  };

  Workload(uint64_t training_samples, uint64_t validation_samples)
      : training_samples_(training_samples), validation_samples_(validation_samples) {}
  virtual ~Workload() = default;

  /// kValidation: 0 where nothing is held out.
  uint64_t sample_count(Part part) const {
    return part == Part::kTraining ? training_samples_ : validation_samples_;
  }
  virtual torch::nn::Module& model() = 0;
  virtual Loss loss(Part part, const std::vector<size_t>& samples) = 0;

  /// What the model generates, `count` tokens of it, as text; "" for models that generate nothing.
  virtual std::string generate(uint64_t /*count*/) { return {}; }

 private:
  uint64_t training_samples_;
  uint64_t validation_samples_;
};

/// Loads the data and makes the model, with initial values from the seed. Completes the options by
/// what the data decide. Throws as load_training_data().
std::unique_ptr<Workload> make_workload(TrainOptions& options);

}  // namespace lockstep::train
