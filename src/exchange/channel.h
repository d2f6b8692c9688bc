#pragma once

#include <cstdint>
#include <optional>

#include "src/exchange/shared_memory.h"

// The inherited socket (SOCK_SEQPACKET, one pair per replica) between a replica and the launcher.
// It carries only what memory cannot: descriptors, and the wish to have a process killed.

namespace lockstep::exchange {

enum class MessageType : uint32_t {
  kRegister = 1,  // replica: value = its pid. Answer: kAccepted once the launcher watches that pid
  kOfferArena,    // replica: index, value = bytes, with the descriptor. Answer: kAccepted
  kRequestArena,  // replica: index. Answer: kArena as soon as somebody has offered it
  kKill,          // replica: index = incarnation to SIGKILL, value = seconds waited. No answer
  kAccepted,      // launcher; to kRegister: value = the launcher's pid
  kArena,         // launcher: index, value = bytes, with the descriptor
  kRefused,       // launcher: the registration or the offer came too late, somebody else's counts
};

struct Message {
  MessageType type = MessageType::kRegister;
  uint32_t index = 0;
  uint64_t value = 0;
};

struct ReceivedMessage {
  Message message;
  Descriptor descriptor;  // empty where none came along
};

/// Sends; `descriptor` -1: none. False when the other side is gone.
bool send_message(int socket, const Message& message, int descriptor = -1);

/// Receives one message, waiting for at most `timeout_ms` (0: only what is there). Empty: nothing
/// came, or something that is no Message (it is dropped), or the other side is gone (then *closed
/// is set, where given).
std::optional<ReceivedMessage> receive_message(int socket, int timeout_ms, bool* closed = nullptr);

}  // namespace lockstep::exchange
