#include "src/launch/line_splitter.h"

#include <algorithm>

namespace lockstep::launch {

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return keep(bytes, emit);
    if (partial_.empty() && end <= kMaxPiece) {
      emit(bytes.substr(0, end), true);
    } else {
      keep(bytes.substr(0, end), emit);
      emit(partial_, true);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::flush(const Emit& emit) {
  if (partial_.empty()) return;
  emit(partial_, false);
  partial_.clear();
}

void LineSplitter::keep(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    // Not as soon as the piece is full, but when more comes: a line of exactly this size stays
    // whole.
    if (partial_.size() == kMaxPiece) flush(emit);
    const size_t size = std::min(bytes.size(), kMaxPiece - partial_.size());
    partial_.append(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
}

}  // namespace lockstep::launch
