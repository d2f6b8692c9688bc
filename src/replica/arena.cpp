#include "src/replica/arena.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/tree/sum.h"

namespace lockstep::internal {
namespace {

constexpr uint64_t kArenaMagic = 0x31616e657261734cu;

// What two models differ in first, line by line.
std::string first_difference(const std::string& ours, const std::string& theirs) {
  size_t at = 0;
  while (at < ours.size() || at < theirs.size()) {
    const size_t our_end = std::min(ours.find('\n', at), ours.size());
    const size_t their_end = std::min(theirs.find('\n', at), theirs.size());
    const std::string our_line = at < ours.size() ? ours.substr(at, our_end - at) : "nothing";
    const std::string their_line =
        at < theirs.size() ? theirs.substr(at, their_end - at) : "nothing";
    if (our_line != their_line) return "here: " + our_line + "; there: " + their_line;
    at = our_end + 1;
  }
  return "no difference in words";
}

// Tells the others, who would otherwise train on without this replica.
void refuse(Arena::Head& head, const std::string& message) {
  uint32_t none = 0;
  if (!head.refused.compare_exchange_strong(none, 1)) return;
  const size_t size = std::min(message.size(), sizeof head.refusal - 1);
  std::memcpy(head.refusal, message.data(), size);
  head.refused.store(2, std::memory_order_release);
}

}  // namespace

std::vector<Bucket> cut_into_buckets(const FlatModel& model, uint64_t bucket_bytes,
                                     uint32_t replica_count) {
  constexpr int64_t kMostElements = 1 << 18;
  const int64_t total = model.plane_size(Plane::kFloat) + model.plane_size(Plane::kDouble);
  int64_t elements = std::min<int64_t>(kMostElements, total / (4 * int64_t{replica_count}));
  if (bucket_bytes != 0) elements = static_cast<int64_t>(bucket_bytes / sizeof(float));
  const int64_t chunk = tree::kNormChunk;
  elements = std::max(chunk, (elements + chunk - 1) / chunk * chunk);
  std::vector<Bucket> buckets;
  for (const Plane plane : {Plane::kFloat, Plane::kDouble}) {
    for (int64_t begin = 0; begin < model.plane_size(plane); begin += elements) {
      buckets.push_back({plane, begin, std::min(begin + elements, model.plane_size(plane))});
    }
  }
  if (!model.buffers().empty()) {
    buckets.push_back({Plane::kBuffers, 0, model.plane_size(Plane::kBuffers)});
  }
  return buckets;
}

Arena::Arena(GroupState& group, const FlatModel& model, const std::vector<Bucket>& buckets,
             uint32_t index, Sharing sharing)
    : slot_bytes_(model.slot_bytes()), parameter_count_(model.parameters().size()) {
  const bool is_private = sharing == Sharing::kOwn;
  const uint32_t rank_count = is_private ? 1 : group.size();
  shape_.rank_count = rank_count;
  shape_.bucket_count = static_cast<uint32_t>(buckets.size());
  shape_.touched_words = model.bit_count() / 64 + 1;
  const std::string& text = model.structure();
  const auto pages = [](uint64_t bytes) { return exchange::round_to_pages(bytes); };
  structure_offset_ = pages(sizeof(Head));
  ledger_offset_ = structure_offset_ + pages(text.size());
  audit_offset_ = ledger_offset_ + pages(ledger::Layout(shape_).size_bytes);
  squares_offset_ = audit_offset_ + pages(rank_count * parameter_count_ * sizeof(uint64_t));
  const auto chunk_count = static_cast<uint64_t>(
      (model.plane_size(Plane::kFloat) + model.plane_size(Plane::kDouble)) / tree::kNormChunk);
  mean_offset_ = squares_offset_ + pages(chunk_count * sizeof(double));
  slots_offset_ = mean_offset_ + slot_bytes_;
  size_bytes_ = slots_offset_ + uint64_t{rank_count} * ledger::kSlotsPerSeat * slot_bytes_;

  const auto prepare = [&](exchange::Descriptor& memory) {
    const exchange::Mapping mapping(memory, 0, audit_offset_, exchange::Mapping::Kind::kShared);
    Head& fresh = *reinterpret_cast<Head*>(mapping.data());
    fresh.size_bytes = size_bytes_;
    fresh.structure = base::hash_bytes(text.data(), text.size());
    fresh.structure_bytes = text.size();
    std::memcpy(mapping.data() + structure_offset_, text.data(), text.size());
    std::vector<uint16_t> members(rank_count, group.incarnation());
    for (uint32_t rank = 0; !is_private && rank < rank_count; ++rank) {
      members[rank] = static_cast<uint16_t>(group.control().seat[rank].load());
    }
    ledger::Ledger::found(mapping.data() + ledger_offset_, shape_, members);
    fresh.magic = kArenaMagic;
  };
  if (is_private) {
    memory_ = exchange::make_shared_memory("lockstep-own-arena", size_bytes_);
    prepare(memory_);
  } else {
    memory_ = group.arena(index, size_bytes_, prepare);
  }

  // The maker's model may be another one than ours: look at the text before trusting any offset.
  const uint64_t found_bytes = exchange::size_of_shared_memory(memory_);
  const exchange::Mapping start(memory_, 0, std::min(found_bytes, structure_offset_ + (64u << 20)),
                                exchange::Mapping::Kind::kShared);
  const Head& theirs = *reinterpret_cast<const Head*>(start.data());
  LOCKSTEP_CHECK(theirs.magic == kArenaMagic, theirs.magic, kArenaMagic);
  const std::string their_text(reinterpret_cast<const char*>(start.data()) + structure_offset_,
                               theirs.structure_bytes);
  if (their_text != text || found_bytes != size_bytes_) {
    const std::string message =
        "rank " + std::to_string(group.rank()) + " wraps another model than the replica " +
        "that came first: " + first_difference(text, their_text) +
        ". All replicas must construct the same model with the same options";
    refuse(*reinterpret_cast<Head*>(start.data()), message);
    group.changed();
    throw Error(ErrorCode::kDiverged, message);
  }
  shared_ = exchange::Mapping(memory_, 0, size_bytes_, exchange::Mapping::Kind::kShared);
  private_mean_ =
      exchange::Mapping(memory_, mean_offset_, slot_bytes_, exchange::Mapping::Kind::kPrivate);
  page_map_ = exchange::Descriptor(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
}

void Arena::check_not_refused() const {
  if (head().refused.load(std::memory_order_acquire) != 2) return;
  throw Error(ErrorCode::kDiverged, head().refusal);
}

void Arena::discard_private_pages() const {
  // Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped, 61 file page or shared.
  constexpr uint64_t kInMemory = uint64_t{3} << 62;
  constexpr uint64_t kShared = uint64_t{1} << 61;
  std::array<uint64_t, 4096> pages;
  const uint64_t page_count = slot_bytes_ / exchange::kPageBytes;
  const uint64_t first = reinterpret_cast<uint64_t>(own_mean()) / exchange::kPageBytes;
  for (uint64_t at = 0; at < page_count; at += pages.size()) {
    const uint64_t count = std::min<uint64_t>(pages.size(), page_count - at);
    const ssize_t bytes = ::pread(page_map_.get(), pages.data(), count * sizeof(uint64_t),
                                  static_cast<off_t>((first + at) * sizeof(uint64_t)));
    if (bytes != static_cast<ssize_t>(count * sizeof(uint64_t))) {
      return private_mean_.discard_writes(0, slot_bytes_);  // no page map here: all of it
    }
    const auto is_own = [&](uint64_t i) {
      return (pages[i] & kInMemory) != 0 && (pages[i] & kShared) == 0;
    };
    for (uint64_t i = 0; i < count; ++i) {
      if (!is_own(i)) continue;
      uint64_t end = i + 1;
      while (end < count && is_own(end)) ++end;
      private_mean_.discard_writes((at + i) * exchange::kPageBytes,
                                   (end - i) * exchange::kPageBytes);
      i = end;
    }
  }
}

uint64_t* Arena::audit_hashes(uint32_t rank) const {
  return reinterpret_cast<uint64_t*>(shared_.data() + audit_offset_) + rank * parameter_count_;
}

double* Arena::chunk_squares() const {
  return reinterpret_cast<double*>(shared_.data() + squares_offset_);
}

void Arena::populate_slot(uint32_t index) const {
  shared_.populate(slots_offset_ + index * slot_bytes_, slot_bytes_);
}

void Arena::populate_mean() const { shared_.populate(mean_offset_, slot_bytes_); }

}  // namespace lockstep::internal
