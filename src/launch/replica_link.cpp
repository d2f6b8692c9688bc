#include "src/launch/replica_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/exchange/event.h"

namespace lockstep::launch {
namespace {

using exchange::ControlBlock;
using exchange::Message;
using exchange::MessageType;
using exchange::ProcessState;
using exchange::receive_message;
using exchange::send_message;

void set_close_on_exec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

// The replica is the first to go when memory runs out, never the launcher. Best effort.
void prefer_for_out_of_memory_kill() {
  const exchange::Descriptor file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), "500", 3) < 0) return;
}

[[noreturn]] void launcher_gone(uint32_t rank) {
  throw Error(ErrorCode::kPeer, fmt::format("rank {}: the launcher is gone", rank));
}

}  // namespace

ReplicaLink::ReplicaLink(const WorkerEnvironment& environment, std::chrono::milliseconds deadline)
    : rank_(environment.rank),
      incarnation_(environment.incarnation),
      control_memory_(environment.control_fd),
      socket_(environment.socket_fd),
      lifeline_(environment.lifeline_fd) {
  for (const auto* fd : {&control_memory_, &socket_, &lifeline_}) set_close_on_exec(fd->get());
  map_control();
  arm_lifeline();
  prefer_for_out_of_memory_kill();
  join(deadline);
}

void ReplicaLink::map_control() {
  const uint64_t size = exchange::size_of_shared_memory(control_memory_);
  bool fits = size == sizeof(ControlBlock);
  if (fits) {
    mapping_ = exchange::Mapping(control_memory_, 0, size, exchange::Mapping::Kind::kShared);
    control_ = reinterpret_cast<ControlBlock*>(mapping_.data());
    fits = control_->magic == exchange::kControlMagic &&
           control_->version == exchange::kControlVersion;
  }
  if (!fits) {
    throw Error(
        ErrorCode::kEnvironment,
        fmt::format("rank {}: the launcher's control block ({} bytes) is not of version {} "
                    "({} bytes): the program was built with another version of lockstep than "
                    "the command that started it",
                    rank_, size, exchange::kControlVersion, sizeof(ControlBlock)));
  }
  if (rank_ >= control_->replica_count || control_->seat[rank_] != incarnation_) {
    throw Error(
        ErrorCode::kEnvironment,
        fmt::format("LOCKSTEP_RANK={} and LOCKSTEP_INCARNATION={} are not what the launcher "
                    "has noted: were they changed on the way?",
                    rank_, incarnation_));
  }
}

void ReplicaLink::arm_lifeline() const {
  const int fd = lifeline_.get();
  // The kernel sends the signal when the last write end closes, that is, when the launcher is gone,
  // whatever this process does then. The pipe is this replica's own: a descriptor has one owner.
  if (::fcntl(fd, F_SETSIG, SIGKILL) != 0 || ::fcntl(fd, F_SETOWN, ::getpid()) != 0 ||
      ::fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK) != 0) {
    throw Error(ErrorCode::kEnvironment,
                fmt::format("rank {}: cannot watch the lifeline: {}", rank_, std::strerror(errno)));
  }
  pollfd now{fd, 0, 0};
  if (::poll(&now, 1, 0) > 0) ::_exit(128 + SIGHUP);  // it broke before it was watched
}

void ReplicaLink::join(std::chrono::milliseconds deadline) {
  const auto pid = static_cast<uint64_t>(::getpid());
  const Answer answer = ask({MessageType::kRegister, 0, pid}, -1, deadline);
  if (!answer) {
    throw Error(ErrorCode::kPeer,
                fmt::format("rank {}: the launcher did not answer the registration "
                            "within {} ms",
                            rank_, deadline.count()));
  }
  auto started = static_cast<uint32_t>(ProcessState::kStarted);
  if (answer->message.type == MessageType::kAccepted) {
    entry().pid = static_cast<int32_t>(pid);
    if (static_cast<pid_t>(answer->message.value) == ::getppid()) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a second line; lost where a wrapper stands between
    }
    if (entry().state.compare_exchange_strong(started,
                                              static_cast<uint32_t>(ProcessState::kRegistered))) {
      exchange::Event(&control_->event, rank_, 0).notify();
      return;
    }
  }
  throw Error(ErrorCode::kPeer,
              fmt::format("rank {}: the launcher refused process {}: another process has joined in "
                          "this place, or the command that was to bring it has ended (one program "
                          "per replica can join, in the launcher's own process namespace)",
                          rank_, pid));
}

bool ReplicaLink::offer_arena(uint32_t index, uint64_t size_bytes,
                              const exchange::Descriptor& memory) {
  const Message offer{MessageType::kOfferArena, index, size_bytes};
  const Answer answer = ask(offer, memory.get(), std::chrono::seconds(30));
  if (!answer) {
    throw Error(
        ErrorCode::kPeer,
        fmt::format("rank {}: the launcher did not take arena {} within 30 s", rank_, index));
  }
  return answer->message.type == MessageType::kAccepted;
}

std::optional<ReplicaLink::Arena> ReplicaLink::request_arena(uint32_t index,
                                                             std::chrono::milliseconds deadline) {
  Answer answer = ask({MessageType::kRequestArena, index, 0}, -1, deadline);
  if (!answer || answer->message.type != MessageType::kArena) return std::nullopt;
  return Arena{std::move(answer->descriptor), answer->message.value};
}

void ReplicaLink::ask_to_kill(uint32_t incarnation, uint64_t seconds) {
  if (!send_message(socket_.get(), {MessageType::kKill, incarnation, seconds}))
    launcher_gone(rank_);
}

void ReplicaLink::announce_drill() const { entry().kill_reason_rank = rank_ + 1; }

ReplicaLink::Answer ReplicaLink::ask(const Message& question, int descriptor,
                                     std::chrono::milliseconds deadline) {
  const std::lock_guard lock(mutex_);
  if (!send_message(socket_.get(), question, descriptor)) launcher_gone(rank_);
  return await_answer(question, deadline);
}

ReplicaLink::Answer ReplicaLink::await_answer(const Message& question,
                                              std::chrono::milliseconds deadline) {
  // The sum of short waits: when the whole run is stopped (ctrl-Z) and goes on later, only one of
  // them has run out.
  using Clock = std::chrono::steady_clock;
  constexpr Clock::duration kSlice = std::chrono::milliseconds(100);
  Clock::duration left = deadline;
  while (left.count() > 0) {
    bool closed = false;
    const auto begin = Clock::now();
    const auto slice = std::chrono::ceil<std::chrono::milliseconds>(std::min(left, kSlice));
    const auto wait = static_cast<int>(slice.count());
    while (auto answer = receive_message(socket_.get(), wait, &closed)) {
      // A request that was given up may be answered later: such an answer is dropped.
      const MessageType type = answer->message.type;
      const bool is_arena = type == MessageType::kArena;
      if (is_arena == (question.type == MessageType::kRequestArena) &&
          answer->message.index == question.index) {
        return answer;
      }
    }
    if (closed) launcher_gone(rank_);
    left -= std::min(Clock::now() - begin, kSlice);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
