#include "src/replica/state_hash.h"

namespace lockstep::internal {
namespace {

void update(base::Hasher& hasher, const torch::Tensor& tensor) {
  hasher.update_number(tensor.defined());
  if (!tensor.defined()) return;
  hasher.update_number(static_cast<uint64_t>(tensor.scalar_type()));
  for (int64_t size : tensor.sizes()) hasher.update_number(static_cast<uint64_t>(size));
  const torch::Tensor rows = tensor.detach().contiguous();
  hasher.update(rows.data_ptr(), rows.nbytes());
}

void update(base::Hasher& hasher, const torch::optim::OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (const auto* adamw = dynamic_cast<const optim::AdamWParamState*>(&state)) {
    hasher.update_number(static_cast<uint64_t>(adamw->step()));
    for (const auto& t : {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()}) {
      update(hasher, t);
    }
  } else if (const auto* adam = dynamic_cast<const optim::AdamParamState*>(&state)) {
    hasher.update_number(static_cast<uint64_t>(adam->step()));
    for (const auto& t : {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()}) {
      update(hasher, t);
    }
  } else if (const auto* sgd = dynamic_cast<const optim::SGDParamState*>(&state)) {
    update(hasher, sgd->momentum_buffer());
  } else if (const auto* rms = dynamic_cast<const optim::RMSpropParamState*>(&state)) {
    hasher.update_number(static_cast<uint64_t>(rms->step()));
    for (const auto& t : {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()}) {
      update(hasher, t);
    }
  } else if (const auto* ada = dynamic_cast<const optim::AdagradParamState*>(&state)) {
    hasher.update_number(static_cast<uint64_t>(ada->step()));
    update(hasher, ada->sum());
  }
}

}  // namespace

base::Hash128 state_hash(const FlatModel& model, const torch::optim::Optimizer& optimizer) {
  base::Hasher hasher;
  const auto update_entry = [&hasher](const Entry& entry) {
    hasher.update_text(entry.name);
    update(hasher, entry.tensor);
  };
  for (const Entry& entry : model.parameters()) update_entry(entry);
  for (const Entry& entry : model.buffers()) update_entry(entry);
  for (const Entry& entry : model.parameters()) {
    const auto found = optimizer.state().find(entry.tensor.unsafeGetTensorImpl());
    hasher.update_number(found != optimizer.state().end());
    if (found != optimizer.state().end()) update(hasher, *found->second);
  }
  return hasher.digest();
}

std::vector<std::pair<std::string, std::string>> parameter_hashes(const FlatModel& model) {
  std::vector<std::pair<std::string, std::string>> hashes;
  for (const Entry& entry : model.parameters()) {
    base::Hasher hasher;
    update(hasher, entry.tensor);
    hashes.emplace_back(entry.name, base::to_hex(hasher.digest()));
  }
  return hashes;
}

}  // namespace lockstep::internal
