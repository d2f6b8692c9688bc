#include "src/replica/flat_model.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/exchange/shared_memory.h"
#include "src/replica/torch_internals.h"
#include "src/tree/sum.h"

namespace lockstep::internal {
namespace {

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

std::string describe(const Entry& entry, const char* kind) {
  std::string text = std::string(kind) + " " + entry.name + " [";
  for (int64_t i = 0; i < entry.tensor.dim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(entry.tensor.size(i));
  }
  return text + "] " + c10::toString(entry.tensor.scalar_type()) + "\n";
}

void check_parameter(const Entry& entry) {
  const torch::Tensor& tensor = entry.tensor;
  const auto refuse = [&](const std::string& found, const std::string& advice) {
    throw Error(ErrorCode::kUsage, "parameter " + entry.name + " is " + found + ": " + advice);
  };
  if (!tensor.device().is_cpu()) {
    refuse("on " + tensor.device().str(),
           "this build reduces CPU memory; move the model to the CPU");
  }
  if (overlaps_itself(tensor)) {
    refuse("an expanded tensor, whose elements share memory", "register a tensor of its own");
  }
  if (tensor.layout() != torch::kStrided) {
    refuse("not a dense tensor", "only dense parameters can be reduced");
  }
  switch (tensor.scalar_type()) {
    case torch::kFloat32:
    case torch::kFloat64:
    case torch::kBFloat16:
    case torch::kFloat16: return;
    default:
      refuse(std::string("of dtype ") + c10::toString(tensor.scalar_type()),
             "float32, float64, bfloat16 and float16 are supported");
  }
}

// Two tensors on one memory would become two copies: tied weights must be one tensor.
void check_overlap(const std::vector<Entry>& entries) {
  std::unordered_map<const void*, std::vector<const Entry*>> by_storage;
  for (const Entry& entry : entries) {
    if (entry.numel == 0) continue;
    auto& others = by_storage[entry.tensor.storage().data()];
    for (const Entry* other : others) {
      if (!overlap(entry.tensor, other->tensor)) continue;
      throw Error(ErrorCode::kUsage,
                  "parameters " + other->name + " and " + entry.name +
                      " are two tensors on the same memory: to tie weights, register one tensor "
                      "under both names");
    }
    others.push_back(&entry);
  }
}

}  // namespace

FlatModel::FlatModel(torch::nn::Module& module) {
  collect(module);
  lay_out();
  move_into_flats();
}

void FlatModel::collect(torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  const auto is_new = [&seen](const torch::Tensor& tensor) {
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    if (!is_new(item.value())) continue;
    Entry entry;
    entry.name = item.key();
    entry.tensor = item.value();
    entry.numel = entry.tensor.numel();
    check_parameter(entry);
    entry.plane = plane_of(entry.tensor.scalar_type());
    structure_ += describe(entry, "parameter");
    parameters_.push_back(std::move(entry));
  }
  check_overlap(parameters_);
  if (parameters_.empty()) {
    throw Error(ErrorCode::kUsage, "the model has no parameters: nothing to train");
  }
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    if (!is_new(item.value())) continue;
    Entry entry;
    entry.name = item.key();
    entry.tensor = item.value();
    const bool is_floating = entry.tensor.is_floating_point();
    entry.plane = is_floating ? Plane::kBuffers : Plane::kBytes;
    entry.numel = is_floating ? entry.tensor.numel() : static_cast<int64_t>(entry.tensor.nbytes());
    structure_ += describe(entry, "buffer");
    buffers_.push_back(std::move(entry));
  }
}

void FlatModel::lay_out() {
  // float32 first within its plane: there a parameter lies at the same offset as in its flat
  // tensor.
  const auto place = [this](Entry& entry, int64_t element_bytes) {
    int64_t& end = plane_sizes_[static_cast<size_t>(entry.plane)];
    entry.offset = end;
    end += round_up(entry.numel, kAlignmentBytes / element_bytes);
  };
  for (const torch::ScalarType dtype :
       {torch::kFloat32, torch::kBFloat16, torch::kFloat16, torch::kFloat64}) {
    int64_t flat_size = 0;
    for (auto entry = parameters_.rbegin(); entry != parameters_.rend(); ++entry) {
      if (entry->tensor.scalar_type() != dtype) continue;
      place(*entry, entry->plane == Plane::kDouble ? 8 : 4);
      entry->flat_offset = flat_size;
      flat_size += round_up(entry->numel,
                            kAlignmentBytes / static_cast<int64_t>(entry->tensor.element_size()));
    }
    if (std::any_of(parameters_.begin(), parameters_.end(),
                    [&](const Entry& e) { return e.tensor.scalar_type() == dtype; })) {
      flats_.push_back(torch::zeros({flat_size}, torch::TensorOptions().dtype(dtype)));
    }
  }
  for (Entry& entry : buffers_) place(entry, entry.plane == Plane::kBuffers ? 8 : 1);
  for (Entry& entry : parameters_) entry.bit = bit_count_++;
  for (Entry& entry : buffers_) {
    entry.bit = bit_count_++;
    entry.changed_bit = bit_count_++;
  }
  for (size_t plane = 0; plane < kPlaneCount; ++plane) {
    plane_sizes_[plane] = round_up(plane_sizes_[plane], tree::kNormChunk);
    plane_offsets_[plane] = slot_bytes_;
    const uint64_t element = plane == 0 ? 4 : plane == 3 ? 1 : 8;
    slot_bytes_ += exchange::round_to_pages(static_cast<uint64_t>(plane_sizes_[plane]) * element);
  }
}

void FlatModel::move_into_flats() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : parameters_) {
    torch::Tensor& tensor = entry.tensor;
    const bool keeps_strides = tensor.is_non_overlapping_and_dense();
    const auto strides =
        keeps_strides ? tensor.strides().vec() : tensor.contiguous().strides().vec();
    torch::Tensor view =
        flat_of(tensor.scalar_type()).as_strided(tensor.sizes(), strides, entry.flat_offset);
    view.copy_(tensor);
    tensor.set_data(view);
    data_.push_back(tensor.data_ptr());
    LOCKSTEP_CHECK(entry.numel == 0 || reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64 == 0,
                   entry.name, tensor.data_ptr());
  }
}

const torch::Tensor& FlatModel::flat_of(torch::ScalarType dtype) const {
  const auto found = std::find_if(flats_.begin(), flats_.end(), [dtype](const torch::Tensor& flat) {
    return flat.scalar_type() == dtype;
  });
  LOCKSTEP_CHECK(found != flats_.end(), c10::toString(dtype), flats_.size());
  return *found;
}

void FlatModel::check_views() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Entry& entry = parameters_[i];
    if (entry.numel == 0 || entry.tensor.data_ptr() == data_[i]) continue;
    throw Error(ErrorCode::kUsage,
                "parameter " + entry.name +
                    " has got other memory since the model was wrapped (module.to() or set_data()):"
                    " convert the model first, then construct DistributedDataParallel");
  }
}

base::Hash128 FlatModel::parameter_hash() const {
  base::Hasher hasher;
  for (const torch::Tensor& flat : flats_) hasher.update(flat.data_ptr(), flat.nbytes());
  return hasher.digest();
}

}  // namespace lockstep::internal
