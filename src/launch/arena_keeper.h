#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "src/exchange/channel.h"

namespace lockstep::launch {

/// Keeps the arenas' memory for those who ask, now or later: it outlives the replica that made it.
class ArenaKeeper {
 public:
  static constexpr uint32_t kMaxArenas = 1024;

  /// Answers the offer, and all requests that wait for it. A second offer of an index, one without
  /// a descriptor, or of memory that can still shrink is refused.
  void offer(int socket, const exchange::Message& offer, exchange::Descriptor memory);

  /// Answers now, or as soon as somebody has offered the arena.
  void request(int socket, const exchange::Message& request);

  /// Before the socket is closed.
  void forget(int socket);

 private:
  struct Arena {
    exchange::Descriptor memory;
    uint64_t size_bytes = 0;
  };
  struct Request {
    int socket;
    uint32_t index;
  };

  void answer(const Request& request) const;

  std::map<uint32_t, Arena> arenas_;  // [index]
  std::vector<Request> waiting_;
};

}  // namespace lockstep::launch
