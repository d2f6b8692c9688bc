#include "src/ledger/layout.h"

namespace lockstep::ledger {
namespace {

uint64_t next_line(uint64_t offset) { return (offset + 63) / 64 * 64; }

}  // namespace

Layout::Layout(const Shape& shape) {
  const uint64_t slot_count = uint64_t{shape.rank_count} * kSlotsPerSeat;
  seats = next_line(sizeof(Head));
  claims = seats + shape.rank_count * sizeof(Seat);
  records = next_line(claims + kMostMicrobatches * sizeof(uint64_t));
  // Two sets of records, by the parity of the round.
  buckets = next_line(records + 2 * uint64_t{kMostMicrobatches} * sizeof(MicrobatchRecord));
  slots = next_line(buckets + shape.bucket_count * sizeof(uint64_t));
  touched = next_line(slots + slot_count * sizeof(SlotHeader));
  step_touched = next_line(touched + slot_count * shape.touched_words * sizeof(uint64_t));
  size_bytes = next_line(step_touched + 2 * uint64_t{shape.touched_words} * sizeof(uint64_t));
}

}  // namespace lockstep::ledger
