#include "src/replica/gradient_sink.h"

#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/replica/torch_internals.h"
#include "src/tree/sum.h"

namespace lockstep::internal {
namespace {

template <typename T>
T* in_slot(const Arena& arena, const FlatModel& model, uint32_t slot, const Entry& entry) {
  std::byte* plane = arena.slot(slot) + model.plane_offset_bytes(entry.plane);
  return reinterpret_cast<T*>(plane) + entry.offset;
}

bool same_bits(const torch::Tensor& left, const torch::Tensor& right) {
  return left.nbytes() == right.nbytes() &&
         std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

}  // namespace

GradientSink::GradientSink(FlatModel& model, Arena& arena, std::function<std::string()> place)
    : model_(model),
      arena_(arena),
      place_(std::move(place)),
      firing_(model.parameters().size(), Firing::kUnknown),
      fired_(model.parameters().size(), 0),
      leaf_hashes_(model.parameters().size(), 0) {
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    set_gradient_hook(model_.parameters()[i].tensor, [this, i](const torch::Tensor&) { fired(i); });
  }
  keep_buffers();
}

GradientSink::~GradientSink() {
  for (const Entry& entry : model_.parameters()) remove_gradient_hook(entry.tensor);
}

void GradientSink::keep_buffers() {
  const torch::NoGradGuard no_grad;
  kept_buffers_.clear();
  for (const Entry& entry : model_.buffers()) {
    kept_buffers_.push_back(entry.tensor.detach().contiguous().clone());
  }
}

void GradientSink::open(Target target, const ledger::Work& work, ledger::Ledger& ledger) {
  LOCKSTEP_CHECK(!is_open_, work.microbatch, is_open_);
  reset();
  is_open_ = true;
  target_ = target;
  work_ = &work;
  ledger_ = &ledger;
  if (target != Target::kSlot) leaf_hashes_.assign(leaf_hashes_.size(), 0);
}

void GradientSink::reset() {
  std::fill(fired_.begin(), fired_.end(), 0u);
  is_spoiled_ = false;
  stray_firing_.clear();
}

void GradientSink::abandon() {
  for (const Entry& entry : model_.parameters()) entry.tensor.mutable_grad() = torch::Tensor();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < kept_buffers_.size(); ++i) {
    const Entry& entry = model_.buffers()[i];
    if (!same_bits(entry.tensor.contiguous(), kept_buffers_[i]))
      entry.tensor.copy_(kept_buffers_[i]);
  }
  is_open_ = false;
}

void GradientSink::fired(size_t index) {
  const Entry& entry = model_.parameters()[index];
  if (!is_open_ || !is_expected_) refuse_firing(entry);
  ++fired_[index];
  if (firing_[index] != Firing::kOnce) return;
  if (fired_[index] == 1) {
    take(index);
  } else {
    firing_[index] = Firing::kMany;
    is_spoiled_ = true;
  }
}

void GradientSink::refuse_firing(const Entry& entry) {
  entry.tensor.mutable_grad() = torch::Tensor();
  const std::string reached = "a backward pass reached parameter " + entry.name;
  if (!is_open_) {
    throw Error(ErrorCode::kUsage,
                reached +
                    " outside an open microbatch: call ddp.backward_mean() or ddp.backward_sum() "
                    "inside the loop over ddp.microbatches(batch)");
  }
  stray_firing_ = reached + " in " + place_() +
                  ", but no count belongs to its gradient: call ddp.backward_mean() or "
                  "ddp.backward_sum() in place of loss.backward()";
  throw Error(ErrorCode::kUsage, stray_firing_);
}

// The leaf as its slot holds it: summed dtype, the parameter's strides.
torch::Tensor GradientSink::leaf_of(const Entry& entry, const torch::Tensor& gradient) const {
  torch::Tensor leaf = gradient.detach();
  if (leaf.layout() != torch::kStrided) leaf = leaf.to_dense();
  const auto dtype = entry.plane == Plane::kDouble ? torch::kFloat64 : torch::kFloat32;
  if (leaf.scalar_type() == dtype && leaf.strides() == entry.tensor.strides()) return leaf;
  torch::Tensor copy = torch::empty_strided(entry.tensor.sizes(), entry.tensor.strides(), dtype);
  copy.copy_(leaf);
  return copy;
}

void GradientSink::take(size_t index) {
  const Entry& entry = model_.parameters()[index];
  const torch::NoGradGuard no_grad;
  const torch::Tensor leaf = leaf_of(entry, entry.tensor.grad());
  entry.tensor.mutable_grad() = torch::Tensor();
  LOCKSTEP_CHECK(leaf.numel() == entry.numel, leaf.numel(), entry.numel);
  if (target_ != Target::kSlot) {
    const auto hash = base::hash_bytes(leaf.data_ptr(), leaf.nbytes());
    leaf_hashes_[index] = hash.low | 1;  // never the 0 of an absent leaf
  }
  if (target_ == Target::kHash) return;
  entry.plane == Plane::kDouble ? merge(entry, leaf.const_data_ptr<double>())
                                : merge(entry, leaf.const_data_ptr<float>());
}

bool GradientSink::sibling_has(size_t sibling, uint32_t bit) const {
  const auto words = ledger_->touched(work_->siblings[sibling].slot);
  return (words[bit / 64].load(std::memory_order_relaxed) >> (bit % 64) & 1) != 0;
}

void GradientSink::set_bit(uint32_t bit) {
  auto& word = ledger_->touched(work_->slot)[bit / 64];
  word.store(word.load(std::memory_order_relaxed) | uint64_t{1} << (bit % 64),
             std::memory_order_relaxed);
}

template <typename T>
bool GradientSink::merge(const Entry& entry, const T* leaf) {
  std::array<tree::Operand<T>, 20> operands;  // 17 levels at most
  size_t count = 0;
  for (size_t i = 0; i < work_->siblings.size(); ++i) {
    if (!sibling_has(i, entry.bit)) continue;
    operands[count++] = {in_slot<T>(arena_, model_, work_->siblings[i].slot, entry),
                         work_->siblings[i].is_left};
  }
  if (leaf == nullptr && count == 0) return false;
  tree::merge<T>(in_slot<T>(arena_, model_, work_->slot, entry), leaf,
                 std::span(operands.data(), count), static_cast<size_t>(entry.numel));
  set_bit(entry.bit);
  return true;
}

void GradientSink::carry_over(const Entry& entry) {
  entry.plane == Plane::kFloat ? merge<float>(entry, nullptr) : merge<double>(entry, nullptr);
}

bool GradientSink::close(bool had_backward) {
  LOCKSTEP_CHECK(is_open_, is_open_, true);
  if (!stray_firing_.empty()) throw Error(ErrorCode::kUsage, stray_firing_);
  if (is_spoiled_) {
    abandon();
    return false;
  }
  for (size_t i = 0; i < firing_.size(); ++i) {
    const Entry& entry = model_.parameters()[i];
    if (fired_[i] != 0 && firing_[i] != Firing::kOnce) {
      if (entry.tensor.grad().defined()) take(i);
      firing_[i] = fired_[i] > 1                    ? Firing::kMany
                   : firing_[i] == Firing::kUnknown ? Firing::kOnce
                                                    : firing_[i];
    } else if (fired_[i] == 0 && target_ != Target::kHash && !work_->siblings.empty()) {
      carry_over(entry);
    }
  }
  if (target_ != Target::kHash && !model_.buffers().empty()) {
    if (had_backward) add_buffers();
    for (const Entry& entry : model_.buffers()) {
      for (size_t s = 0; s < work_->siblings.size(); ++s) {
        if (sibling_has(s, entry.changed_bit)) set_bit(entry.changed_bit);
      }
      if (had_backward) continue;
      entry.plane == Plane::kBuffers ? carry_over(entry) : add_byte_buffer(entry, false);
    }
  }
  abandon();  // nothing is left in .grad(); buffers go back to the step's
  return true;
}

void GradientSink::add_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < kept_buffers_.size(); ++i) {
    const Entry& entry = model_.buffers()[i];
    const torch::Tensor value = entry.tensor.detach().contiguous();
    const bool changed = !same_bits(value, kept_buffers_[i]);
    if (changed) set_bit(entry.changed_bit);
    if (entry.plane == Plane::kBytes) {
      add_byte_buffer(entry, changed);
    } else {
      const torch::Tensor leaf = value.to(torch::kFloat64);
      merge<double>(entry, leaf.const_data_ptr<double>());
    }
  }
}

// Buffers of integers and bools cannot be averaged: all microbatches that change one must agree.
void GradientSink::add_byte_buffer(const Entry& entry, bool changed) {
  auto* own = in_slot<uint8_t>(arena_, model_, work_->slot, entry);
  const auto size = static_cast<size_t>(entry.numel);
  bool has_value = changed;
  if (changed) std::memcpy(own, entry.tensor.contiguous().data_ptr(), size);
  for (size_t s = 0; s < work_->siblings.size(); ++s) {
    if (!sibling_has(s, entry.bit)) continue;
    const auto* theirs = in_slot<uint8_t>(arena_, model_, work_->siblings[s].slot, entry);
    if (!has_value) {
      std::memcpy(own, theirs, size);
      has_value = true;
    } else if (std::memcmp(own, theirs, size) != 0) {
      ledger_->fail(ledger::FailureKind::kOther, work_->microbatch, 0,
                    "buffer " + entry.name + " (" + c10::toString(entry.tensor.scalar_type()) +
                        ") was changed to different values by different microbatches; only "
                        "floating-point buffers can be averaged");
    }
  }
  if (has_value) set_bit(entry.bit);
}

}  // namespace lockstep::internal
