#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// Cuts a stream of bytes into lines. No byte is changed, added or lost but the '\n' that
/// `has_newline` stands for. Holds at most one unfinished line of kMaxPiece bytes; longer ones come
/// in pieces.
class LineSplitter {
 public:
  static constexpr size_t kMaxPiece = size_t{64} * 1024;

  using Emit = std::function<void(std::string_view text, bool has_newline)>;

  void feed(std::string_view bytes, const Emit& emit);

  /// Emits what is there of an unfinished line.
  void flush(const Emit& emit);

  bool has_partial() const { return !partial_.empty(); }

 private:
  void keep(std::string_view bytes, const Emit& emit);

  std::string partial_;
};

}  // namespace lockstep::launch
