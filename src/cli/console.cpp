#include "src/cli/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/cli/command.h"
#include "src/launch/rank_list.h"

namespace lockstep::cli {
namespace {

report::ProgressOptions progress_options(report::ProgressMode mode) {
  const char* term = std::getenv("TERM");
  report::ProgressOptions options;
  options.mode = report::resolve_progress_mode(mode, ::isatty(STDOUT_FILENO) == 1,
                                               term == nullptr ? "" : term);
  options.width = terminal_width();
  return options;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// 0, or the error that stopped it.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // somebody shares the stream with us and does not want to wait
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void write_output(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == 0) return;
  if (error == EPIPE || error == EIO) throw OutputClosed();  // EIO: the terminal is gone
  throw Error(ErrorCode::kEnvironment,
              fmt::format("cannot write to standard output: {}", std::strerror(error)));
}

}  // namespace

bool asks_for_help(const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments) {
    if (word == "--") return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

std::vector<bool> shown_ranks(const std::string& tee, uint32_t replica_count,
                              const std::string& log_folder, Console& console) {
  std::vector<bool> ranks = launch::parse_ranks("--tee", tee, replica_count);
  if (tee == "none" && log_folder.empty()) {
    console.warn(
        "lockstep: warning: --tee none without --log-dir: what the replicas print is lost.");
  }
  return ranks;
}

uint32_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

Console::Console(report::ProgressMode mode) : progress_(progress_options(mode)) {}

void Console::print(std::string_view line) {
  write_output(fmt::format("{}{}\n", progress_.make_room(), line));
}

void Console::warn(std::string_view line) {
  const std::string room = progress_.make_room();
  if (!room.empty()) write_output(room);
  // Where stderr is gone, there is nowhere left to say so.
  static_cast<void>(write_all(STDERR_FILENO, fmt::format("{}\n", line)));
}

void Console::show(const report::ProgressState& state) {
  progress_.set_width(terminal_width());
  if (const auto text = progress_.line(state, now_seconds())) write_output(*text);
}

}  // namespace lockstep::cli
