#include "src/launch/member.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/launch/pipe.h"
#include "src/launch/worker_environment.h"

namespace lockstep::launch {
namespace {

using exchange::Descriptor;

struct SocketPair {
  Descriptor ours;
  Descriptor theirs;
};

SocketPair make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_no_descriptor("a socket", errno);
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace

Stream::Stream(Descriptor read_end, uint32_t rank, bool is_stderr)
    : read_end_(std::move(read_end)), rank_(rank), is_stderr_(is_stderr) {}

LineSplitter::Emit Stream::emit_to(Output& output, LastLines& last_lines) const {
  return [this, &output, &last_lines](std::string_view text, bool has_newline) {
    if (is_stderr_) last_lines.add(text, output.row());
    output.line({rank_, is_stderr_, text, has_newline});
  };
}

bool Stream::relay(Output& output, LastLines& last_lines, size_t limit_bytes) {
  char bytes[16384];
  bool any = false;
  size_t total = 0;
  while (is_open() && total < limit_bytes) {
    const ssize_t size = ::read(read_end_.get(), bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0) {
      flush(output, last_lines);
      read_end_.reset();
      break;
    }
    any = true;
    total += static_cast<size_t>(size);
    output.keep(rank_, is_stderr_, {bytes, static_cast<size_t>(size)});
    splitter_.feed({bytes, static_cast<size_t>(size)}, emit_to(output, last_lines));
    last_byte_ = Clock::now();
  }
  return any;
}

void Stream::flush(Output& output, LastLines& last_lines) {
  splitter_.flush(emit_to(output, last_lines));
}

void Stream::flush_since(Output& output, LastLines& last_lines, Clock::time_point since) {
  if (!splitter_.has_partial() || last_byte_ > since) return;
  // Where our own reader is slow, the end of the line may stand unread in the pipe.
  pollfd more{read_end_.get(), POLLIN, 0};
  if (::poll(&more, 1, 0) > 0 && (more.revents & POLLIN) != 0) return;
  flush(output, last_lines);
}

Member start_member(const MemberStart& start) {
  Pipe out = make_pipe();
  Pipe error = make_pipe();
  Pipe lifeline = make_pipe();
  SocketPair socket = make_socket_pair();
  for (const Descriptor* ours : {&out.read_end, &error.read_end, &socket.ours}) {
    set_non_blocking(*ours);
  }
  WorkerVariables variables;
  variables.worker = {start.control_fd, socket.theirs.get(), lifeline.read_end.get(), start.rank,
                      start.incarnation};
  variables.replica_count = start.replica_count;
  variables.thread_count = start.thread_count;
  variables.run_token = start.run_token;
  const auto environment = worker_variables(::environ, variables);
  SpawnedProcess process = spawn({start.command,
                                  environment,
                                  out.write_end.get(),
                                  error.write_end.get(),
                                  {start.control_fd, socket.theirs.get(), lifeline.read_end.get()},
                                  start.signals,
                                  start.open_file_limit,
                                  start.cpus});
  Member member;
  member.rank = start.rank;
  member.incarnation = start.incarnation;
  member.child_pid = process.pid;
  member.child_pidfd = std::move(process.pidfd);
  member.exec_error = std::move(process.exec_error);
  member.socket = std::move(socket.ours);
  member.lifeline = std::move(lifeline.write_end);
  member.streams[0] = Stream(std::move(out.read_end), start.rank, false);
  member.streams[1] = Stream(std::move(error.read_end), start.rank, true);
  return member;
}

void signal_member(const Member& member, int signal) {
  if (!member.child_status) send_signal(member.child_pidfd, signal);
  if (!member.ended) send_signal(member.registered_pidfd, signal);
}

}  // namespace lockstep::launch
