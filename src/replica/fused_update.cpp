#include "src/replica/fused_update.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/replica/torch_internals.h"

namespace lockstep::internal {
namespace {

// Elements per call of the kernel, each of which costs some 10 us of LibTorch's own: parameter,
// gradient and two states of float32 are 1 MiB, most of which stays in a second-level cache until
// the parameters are hashed.
constexpr int64_t kChunk = 64 * 1024;

}  // namespace

FusedUpdate::FusedUpdate(std::shared_ptr<ReplicaImpl> replica, size_t state_count)
    : replica_(std::move(replica)), states_(state_count) {
  const auto& flats = model().flats();
  by_place_.resize(flats.size());
  for (const Entry& entry : model().parameters()) {
    const auto dtype = entry.tensor.scalar_type();
    const auto flat = static_cast<size_t>(
        std::find_if(flats.begin(), flats.end(),
                     [dtype](const auto& f) { return f.scalar_type() == dtype; }) -
        flats.begin());
    by_place_[flat].push_back(&entry);
  }
  for (auto& list : by_place_) {
    std::sort(list.begin(), list.end(), [](const Entry* left, const Entry* right) {
      return left->flat_offset < right->flat_offset;
    });
  }
  const torch::NoGradGuard no_grad;
  for (auto& state : states_) {
    for (const auto& flat : flats) state.push_back(torch::zeros_like(flat));
  }
}

const Entry& FusedUpdate::entry_of(const torch::Tensor& tensor) const {
  for (const Entry& entry : model().parameters()) {
    if (entry.tensor.is_same(tensor)) return entry;
  }
  throw Error(
      ErrorCode::kUsage,
      "the optimizer was given a tensor that is no parameter of the wrapped model: lockstep's "
      "optimizers update the parameters of one DistributedDataParallel");
}

void FusedUpdate::set_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  group_of_.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& tensor : groups[g].params()) {
      group_of_[entry_of(tensor).tensor.unsafeGetTensorImpl()] = g;
    }
  }
}

int64_t FusedUpdate::padded_end(const Entry& entry) const {
  const int64_t step = kAlignmentBytes / static_cast<int64_t>(entry.tensor.element_size());
  return entry.flat_offset + (entry.numel + step - 1) / step * step;
}

// For a gradient that is not the mean in its place (user code put another tensor there, or half
// precision): a copy with zero padding.
torch::Tensor FusedUpdate::padded_gradient(const Entry& entry) const {
  const int64_t size = padded_end(entry) - entry.flat_offset;
  const torch::Tensor& gradient = entry.tensor.grad();
  torch::Tensor copy = torch::zeros({size}, entry.tensor.options());
  copy.as_strided(entry.tensor.sizes(), entry.tensor.strides()).copy_(gradient);
  return copy;
}

std::vector<Segment> FusedUpdate::segments(const std::function<Progress(const Entry&)>& progress) {
  std::vector<Segment> segments;
  for (size_t flat = 0; flat < by_place_.size(); ++flat) {
    const size_t first = segments.size();
    bool last_in_place = false;
    for (const Entry* entry : by_place_[flat]) {
      const auto group = group_of_.find(entry->tensor.unsafeGetTensorImpl());
      if (group == group_of_.end() || !entry->tensor.grad().defined() || entry->numel == 0)
        continue;
      const Progress now = progress(*entry);
      const bool in_place = replica_->is_own_mean(*entry, entry->tensor.grad());
      Segment* last = segments.empty() ? nullptr : &segments.back();
      if (last != nullptr && in_place && last_in_place && last->end == entry->flat_offset &&
          last->group == group->second && last->step == now.step &&
          last->is_first == now.is_first) {
        last->end = padded_end(*entry);
      } else {
        segments.push_back({flat, entry->flat_offset, padded_end(*entry),
                            in_place ? torch::Tensor() : padded_gradient(*entry), group->second,
                            now.step, now.is_first});
      }
      last_in_place = in_place;
    }
    for (size_t i = first; i < segments.size(); ++i) {
      Segment& segment = segments[i];
      if (segment.gradient.defined()) continue;
      segment.gradient =
          replica_->own_mean_stretch(flat, segment.begin, segment.end - segment.begin);
    }
  }
  return segments;
}

void FusedUpdate::run(const std::function<Progress(const Entry&)>& progress,
                      const std::function<void(const Segment&, torch::Tensor, torch::Tensor,
                                               const std::vector<torch::Tensor>&)>& kernel) {
  replica_->begin_update();
  const torch::NoGradGuard no_grad;
  const double norm = replica_->last_norm();
  // The coefficient of torch::nn::utils::clip_grad_norm_.
  const double scale = max_norm_ > 0 && norm + 1e-6 > max_norm_ ? max_norm_ / (norm + 1e-6) : 1.0;
  const std::vector<Segment> all = segments(progress);
  const auto& flats = model().flats();
  base::Hasher hasher;
  size_t next = 0;
  for (size_t flat = 0; flat < flats.size(); ++flat) {
    const auto element = static_cast<int64_t>(flats[flat].element_size());
    const auto* data = static_cast<const std::byte*>(flats[flat].const_data_ptr());
    int64_t hashed = 0;
    const auto hash_up_to = [&](int64_t end) {
      hasher.update(data + hashed * element, static_cast<size_t>((end - hashed) * element));
      hashed = end;
    };
    for (; next < all.size() && all[next].flat == flat; ++next) {
      const Segment& segment = all[next];
      for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk) {
        const int64_t size = std::min(kChunk, segment.end - begin);
        torch::Tensor gradient = segment.gradient.narrow(0, begin - segment.begin, size);
        if (scale != 1.0) gradient = gradient * scale;
        std::vector<torch::Tensor> states;
        for (const auto& state : states_) states.push_back(state[flat].narrow(0, begin, size));
        kernel(segment, flats[flat].narrow(0, begin, size), gradient, states);
        hash_up_to(begin + size);
      }
    }
    hash_up_to(flats[flat].numel());
  }
  for (const Entry& entry : model().parameters()) {
    if (entry.tensor.grad().defined()) bump_version(entry.tensor);
  }
  clear_autocast_cache();
  replica_->mark_applied(hasher.digest());
}

// The state must be our view of the flat state; after load() it is a tensor of its own.
void FusedUpdate::adopt(torch::Tensor& state, const Entry& entry, size_t which) const {
  const auto& flats = model().flats();
  const auto flat = std::find_if(flats.begin(), flats.end(), [&](const auto& tensor) {
    return tensor.scalar_type() == entry.tensor.scalar_type();
  });
  const torch::Tensor& all = states_[which][static_cast<size_t>(flat - flats.begin())];
  const auto* place = static_cast<const std::byte*>(all.const_data_ptr()) +
                      entry.flat_offset * static_cast<int64_t>(all.element_size());
  if (state.defined() && state.const_data_ptr() == place) return;
  const auto view = all.as_strided(entry.tensor.sizes(), entry.tensor.strides(), entry.flat_offset);
  if (state.defined()) view.copy_(state);
  state = view;
}

}  // namespace lockstep::internal
