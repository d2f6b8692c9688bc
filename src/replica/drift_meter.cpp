#include "src/replica/drift_meter.h"

#include <cmath>
#include <cstring>

namespace lockstep::internal {
namespace {

// [rank] calls whose copy is complete.
constexpr uint64_t kHeadBytes =
    exchange::round_to_pages(ledger::kMostReplicas * sizeof(std::atomic<uint32_t>));

// The launcher keeps arenas 0 to 1023: a model's own has the model's number, this one comes after.
constexpr uint32_t kFirstArena = 512;

}  // namespace

DriftMeter::DriftMeter(GroupState& group, const FlatModel& model, uint32_t model_index)
    : group_(group), model_(model), arena_index_(kFirstArena + model_index) {
  for (const auto& flat : model.flats()) copy_bytes_ += exchange::round_to_pages(flat.nbytes());
}

std::atomic<uint32_t>& DriftMeter::calls_of(uint32_t rank) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(mapping_.data())[rank];
}

std::byte* DriftMeter::copy_of(uint32_t rank) const {
  // Two copies a rank, used in turn: a slow replica may still compare the last ones.
  return mapping_.data() + kHeadBytes + (uint64_t{rank} * 2 + calls_ % 2) * copy_bytes_;
}

void DriftMeter::make_area() {
  const uint64_t bytes = kHeadBytes + 2 * copy_bytes_ * group_.size();
  const auto memory = group_.arena(arena_index_, bytes, [](exchange::Descriptor&) {});
  mapping_ = exchange::Mapping(memory, 0, bytes, exchange::Mapping::Kind::kShared);
}

std::vector<uint32_t> DriftMeter::ranks_behind() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank : group_.living_ranks()) {
    if (calls_of(rank).load(std::memory_order_acquire) < calls_) ranks.push_back(rank);
  }
  return ranks;
}

DriftMeter::Drift DriftMeter::measure() {
  if (group_.size() == 1) return {};
  if (mapping_.data() == nullptr) make_area();
  ++calls_;
  std::byte* copy = copy_of(group_.rank());
  for (const auto& flat : model_.flats()) {
    std::memcpy(copy, flat.data_ptr(), flat.nbytes());
    copy += exchange::round_to_pages(flat.nbytes());
  }
  calls_of(group_.rank()).store(calls_, std::memory_order_release);
  group_.changed();
  group_.wait(
      "the other copies of the parameters", [this] { return ranks_behind().empty(); },
      [this] { return ranks_behind(); });
  return compare(group_.living_ranks());
}

DriftMeter::Drift DriftMeter::compare(const std::vector<uint32_t>& ranks) const {
  const torch::NoGradGuard no_grad;
  Drift drift;
  for (const Entry& entry : model_.parameters()) {
    if (entry.numel == 0) continue;
    const auto dtype = entry.tensor.scalar_type();
    uint64_t offset = static_cast<uint64_t>(entry.flat_offset) * entry.tensor.element_size();
    for (size_t flat = 0; model_.flats()[flat].scalar_type() != dtype; ++flat) {
      offset += exchange::round_to_pages(model_.flats()[flat].nbytes());
    }
    const std::byte* first = copy_of(ranks.front()) + offset;
    torch::Tensor low, high;
    bool same_bits = true;
    for (uint32_t rank : ranks) {
      std::byte* data = copy_of(rank) + offset;
      const auto copy = torch::from_blob(data, {entry.numel}, dtype).to(torch::kFloat64);
      same_bits = same_bits && std::memcmp(data, first, entry.tensor.nbytes()) == 0;
      low = low.defined() ? torch::minimum(low, copy) : copy;
      high = high.defined() ? torch::maximum(high, copy) : copy;
    }
    if (same_bits) continue;
    if (drift.parameter.empty()) drift.parameter = entry.name;
    const double largest = (high - low).max().item<double>();
    if (std::isnan(largest) || largest > drift.largest) drift.largest = largest;
  }
  return drift;
}

}  // namespace lockstep::internal
