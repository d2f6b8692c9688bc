#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "src/base/hash.h"

namespace lockstep::internal {

/// Gradient partials are summed in float for float32, bfloat16 and float16 parameters, in double
/// for float64 parameters and for floating-point buffers (rules 3 and 6); other buffers travel as
/// bytes.
enum class Plane : uint32_t { kFloat = 0, kDouble, kBuffers, kBytes };
inline constexpr size_t kPlaneCount = 4;

/// A parameter or buffer and its place in a slot.
struct Entry {
  std::string name;
  torch::Tensor tensor;
  Plane plane = Plane::kFloat;
  int64_t offset = 0;        // elements (kBytes: bytes) from the plane's start; 64-byte aligned
  int64_t numel = 0;         // elements (kBytes: bytes)
  int64_t flat_offset = 0;   // parameters: elements into the flat tensor of its dtype
  uint32_t bit = 0;          // in touched words
  uint32_t changed_bit = 0;  // buffers
};

/// The module's parameters as views of one flat tensor per dtype, laid out from the model alone: in
/// reverse order of registration (the order in which backward finishes them), each start aligned to
/// 64 bytes; and the same order for the planes of a slot. Tensors stay the same objects; a tensor
/// registered under several names is one entry, once.
class FlatModel {
 public:
  explicit FlatModel(torch::nn::Module& module);

  const std::vector<Entry>& parameters() const { return parameters_; }  // in order of registration
  const std::vector<Entry>& buffers() const { return buffers_; }

  /// Elements of a plane (kBytes: bytes), rounded up to whole norm chunks.
  int64_t plane_size(Plane plane) const { return plane_sizes_[static_cast<size_t>(plane)]; }
  /// Bytes from the start of a slot to a plane, and of a whole slot; multiples of the page size.
  uint64_t plane_offset_bytes(Plane plane) const {
    return plane_offsets_[static_cast<size_t>(plane)];
  }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t bit_count() const { return bit_count_; }

  /// Flat storage by dtype, with padding that stays zero.
  const std::vector<torch::Tensor>& flats() const { return flats_; }
  const torch::Tensor& flat_of(torch::ScalarType dtype) const;

  /// Names, shapes, dtypes, one per line: what all replicas must agree on.
  const std::string& structure() const { return structure_; }

  /// Refuses parameters whose memory was replaced since (module.to(), set_data()).
  void check_views() const;

  /// XXH3-128 over the flat parameters, padding included.
  base::Hash128 parameter_hash() const;

 private:
  void collect(torch::nn::Module& module);
  void lay_out();
  void move_into_flats();

  std::vector<Entry> parameters_;
  std::vector<Entry> buffers_;
  std::vector<torch::Tensor> flats_;
  std::vector<void*> data_;  // [parameter]
  int64_t plane_sizes_[kPlaneCount] = {};
  uint64_t plane_offsets_[kPlaneCount] = {};
  uint64_t slot_bytes_ = 0;
  uint32_t bit_count_ = 0;
  std::string structure_;
};

inline constexpr int64_t kAlignmentBytes = 64;

/// float for what is summed in float, double else.
inline Plane plane_of(torch::ScalarType dtype) {
  return dtype == torch::kFloat64 ? Plane::kDouble : Plane::kFloat;
}

}  // namespace lockstep::internal
