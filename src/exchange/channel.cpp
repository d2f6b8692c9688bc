#include "src/exchange/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace lockstep::exchange {

bool send_message(int socket, const Message& message, int descriptor) {
  Message copy = message;
  iovec part{&copy, sizeof copy};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof copy);
}

std::optional<ReceivedMessage> receive_message(int socket, int timeout_ms, bool* closed) {
  pollfd ready{socket, POLLIN, 0};
  if (::poll(&ready, 1, timeout_ms) <= 0) return std::nullopt;
  ReceivedMessage received;
  iovec part{&received.message, sizeof received.message};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = ancillary;
  header.msg_controllen = sizeof ancillary;
  ssize_t size;
  do {
    // Not waiting: another process that inherited the socket may have taken the message.
    size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  if (size <= 0 && closed != nullptr) *closed = true;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr;
       rights = CMSG_NXTHDR(&header, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    received.descriptor = Descriptor(descriptor);
  }
  // Longer ones are cut to our size by recvmsg, and say so.
  const bool is_whole =
      size == static_cast<ssize_t>(sizeof received.message) && (header.msg_flags & MSG_TRUNC) == 0;
  if (!is_whole) return std::nullopt;
  return received;
}

}  // namespace lockstep::exchange
