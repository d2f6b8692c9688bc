#pragma once

#include <cstdint>

namespace lockstep::ledger {

/// What a ledger word says. A word of an older round reads as free: nothing is ever reset, so no
/// reader can mistake an old value for a new one (no ABA).
struct Word {
  uint32_t round = 0;
  uint16_t incarnation = 0;
  uint8_t phase = 0;
  uint8_t attempts = 0;  // deaths that this piece of work can have caused

  static Word unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits >> 32), static_cast<uint16_t>(bits >> 16),
            static_cast<uint8_t>(bits >> 8), static_cast<uint8_t>(bits)};
  }

  uint64_t pack() const {
    return uint64_t{round} << 32 | uint64_t{incarnation} << 16 | uint64_t{phase} << 8 | attempts;
  }

  friend bool operator==(const Word&, const Word&) = default;
};

/// A stretch of microbatches [low, high) that one seat works through from its low end, while
/// thieves take from its high end. Only a hint where to look: the claims decide.
struct Run {
  uint32_t round = 0;
  uint16_t low = 0;
  uint16_t high = 0;

  static Run unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits >> 32), static_cast<uint16_t>(bits >> 16),
            static_cast<uint16_t>(bits)};
  }

  uint64_t pack() const { return uint64_t{round} << 32 | uint64_t{low} << 16 | high; }
};

}  // namespace lockstep::ledger
