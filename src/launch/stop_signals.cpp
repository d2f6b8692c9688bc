#include "src/launch/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "src/base/check.h"

namespace lockstep::launch {
namespace {

constexpr std::array kCaught = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ, SIGCHLD};

std::atomic<int> handler_fd{-1};

void write_signal(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe has enough signals in it already.
  if (::write(handler_fd.load(), &byte, 1) < 0) errno = error;
  errno = error;
}

void (*handler_of(int signal))(int) {
  if (signal == SIGPIPE || signal == SIGXFSZ) return SIG_IGN;
  return signal == SIGCHLD ? SIG_DFL : write_signal;
}

}  // namespace

StopSignals::StopSignals() : pipe_(make_pipe()) {
  set_non_blocking(pipe_.read_end);
  set_non_blocking(pipe_.write_end);
  const int before = handler_fd.exchange(pipe_.write_end.get());
  LOCKSTEP_CHECK(before == -1, before, "one run at a time in a process");
  for (size_t i = 0; i < kCaught.size(); ++i) {
    ::sigaction(kCaught[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN && kCaught[i] != SIGCHLD) continue;
    struct sigaction action {};
    action.sa_handler = handler_of(kCaught[i]);
    action.sa_flags = SA_RESTART;
    ::sigaction(kCaught[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  restore();
  handler_fd = -1;
}

void StopSignals::restore() const {
  for (size_t i = 0; i < kCaught.size(); ++i) ::sigaction(kCaught[i], &before_[i], nullptr);
}

std::optional<int> StopSignals::take() {
  unsigned char byte = 0;
  if (::read(pipe_.read_end.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace lockstep::launch
