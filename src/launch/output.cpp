#include "src/launch/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::launch {

void OutputSink::append(std::string_view bytes) {
  if (error_ == 0) pending_.append(bytes);
}

void OutputSink::write_ready() {
  // A pipe that is ready takes PIPE_BUF bytes without waiting.
  constexpr size_t kPiece = 4096;
  while (!is_empty()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    const size_t size = std::min(kPiece, pending_.size() - begin_);
    const ssize_t written = ::write(fd_, pending_.data() + begin_, size);
    if (written >= 0) {
      begin_ += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
      begin_ = pending_.size();
    }
  }
  if (is_empty() || begin_ > kFull) {
    pending_.erase(0, begin_);
    begin_ = 0;
  }
}

Output::Output(const LaunchOptions& options)
    : options_(options), stdout_(options.stdout_fd), stderr_(options.stderr_fd) {}

void Output::line(const OutputLine& line) {
  if (!options_.on_line) return append_line(line);
  if (!reader_gone_ && !options_.on_line(line)) reader_gone_ = true;
}

void Output::append_line(const OutputLine& line) {
  OutputSink& to = sink(line.is_stderr);
  OpenLine& open = open_[line.is_stderr ? 1 : 0];
  // Without prefixes the bytes pass as they are, unless another replica speaks within the line.
  if (open.is_open && open.rank != line.rank) to.append("\n");
  if (options_.prefix_lines) to.append(fmt::format("[rank {}] ", line.rank));
  to.append(line.text);
  const bool ends = line.has_newline || options_.prefix_lines;
  if (ends) to.append("\n");
  open = {!ends, line.rank};
}

void Output::notice(std::string_view sentence) {
  if (options_.on_notice) return options_.on_notice(sentence);
  OpenLine& open = open_[1];
  stderr_.append(fmt::format("{}lockstep: {}\n", open.is_open ? "\n" : "", sentence));
  open.is_open = false;
}

bool Output::has_room(bool is_stderr) const {
  return options_.on_line != nullptr || !(is_stderr ? stderr_ : stdout_).is_full();
}

void Output::write_ready() {
  stdout_.write_ready();
  stderr_.write_ready();
}

bool Output::is_closed() const {
  return reader_gone_ || stdout_.error() == EPIPE || stderr_.error() == EPIPE;
}

std::optional<std::string> Output::take_write_error() {
  for (const OutputSink* sink : {&stdout_, &stderr_}) {
    const int error = sink->error();
    if (error == 0 || error == EPIPE || error_told_) continue;
    error_told_ = true;
    return fmt::format("cannot write to {}: {}; what comes after is lost",
                       sink == &stdout_ ? "standard output" : "standard error", std::strerror(error));
  }
  return std::nullopt;
}

void LastLines::add(std::string_view line) {
  lines_.emplace_back(line.substr(0, kMaxBytes));
  if (line.size() > kMaxBytes) lines_.back() += " ...";
  if (lines_.size() > kCount) lines_.pop_front();
}

}  // namespace lockstep::launch
