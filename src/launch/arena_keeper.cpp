#include "src/launch/arena_keeper.h"

#include <fcntl.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

using exchange::MessageType;
using exchange::send_message;

bool is_usable(const exchange::Descriptor& memory, uint64_t size_bytes) {
  if (!memory) return false;
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
         exchange::size_of_shared_memory(memory) >= size_bytes;
}

}  // namespace

void ArenaKeeper::offer(int socket, const exchange::Message& offer, exchange::Descriptor memory) {
  if (offer.index >= kMaxArenas || arenas_.contains(offer.index) ||
      !is_usable(memory, offer.value)) {
    send_message(socket, {MessageType::kRefused, offer.index, 0});
    return;
  }
  arenas_[offer.index] = {std::move(memory), offer.value};
  send_message(socket, {MessageType::kAccepted, offer.index, offer.value});
  for (const Request& request : waiting_) {
    if (request.index == offer.index) answer(request);
  }
  std::erase_if(waiting_, [&](const Request& request) { return request.index == offer.index; });
}

void ArenaKeeper::request(int socket, const exchange::Message& request) {
  if (arenas_.contains(request.index)) return answer({socket, request.index});
  const auto is_same = [&](const Request& other) {
    return other.socket == socket && other.index == request.index;
  };
  // Asked again after its deadline: one answer is enough, and the list stays bounded.
  if (request.index >= kMaxArenas || std::any_of(waiting_.begin(), waiting_.end(), is_same)) return;
  waiting_.push_back({socket, request.index});
}

void ArenaKeeper::forget(int socket) {
  std::erase_if(waiting_, [&](const Request& request) { return request.socket == socket; });
}

void ArenaKeeper::answer(const Request& request) const {
  const Arena& arena = arenas_.at(request.index);
  send_message(request.socket, {MessageType::kArena, request.index, arena.size_bytes},
               arena.memory.get());
}

}  // namespace lockstep::launch
