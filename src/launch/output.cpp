#include "src/launch/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

// The smallest usual terminal, less what the report itself takes.
constexpr uint64_t kColumns = 80;
constexpr uint64_t kScreenRows = 18;

bool is_same_file(int one, int other) {
  struct stat status[2];
  return ::fstat(one, &status[0]) == 0 && ::fstat(other, &status[1]) == 0 &&
         status[0].st_dev == status[1].st_dev && status[0].st_ino == status[1].st_ino;
}

}  // namespace

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
    : options_(options),
      logs_(options.log_folder.empty() ? LogFiles()
                                       : LogFiles(options.log_folder, options.replica_count)),
      is_shared_(is_same_file(options.stdout_fd, options.stderr_fd)),
      targets_{{{OutputSink(options.stdout_fd), 0, {}}, {OutputSink(options.stderr_fd), 0, {}}}} {}

void Output::keep(uint32_t rank, bool is_stderr, std::string_view bytes) {
  logs_.append(rank, is_stderr, bytes);
}

void Output::line(const OutputLine& line) {
  if (!options_.is_shown.empty() && !options_.is_shown[line.rank]) return;
  if (!options_.on_line) return append_line(line);
  if (!reader_gone_ && !options_.on_line(line)) reader_gone_ = true;
}

void Output::append_line(const OutputLine& line) {
  auto& [to, rows, open_rank] = targets_[index_of(line.is_stderr)];
  rows += 1 + line.text.size() / kColumns;
  // Without prefixes the bytes pass as they are, unless another replica speaks within the line.
  if (open_rank && open_rank != line.rank) to.append("\n");
  if (options_.prefix_lines) to.append(fmt::format("[rank {}] ", line.rank));
  to.append(line.text);
  const bool ends = line.has_newline || options_.prefix_lines;
  if (ends) to.append("\n");
  open_rank = ends ? std::nullopt : std::optional(line.rank);
}

void Output::end_line() {
  auto& [to, rows, open_rank] = targets_[index_of(true)];
  if (open_rank) to.append("\n");
  open_rank.reset();
}

void Output::notice(std::string_view sentence) {
  if (options_.on_notice) return options_.on_notice(sentence);
  end_line();
  targets_[index_of(true)].rows += 1 + sentence.size() / kColumns;
  targets_[index_of(true)].sink.append(fmt::format("lockstep: {}\n", sentence));
}

bool Output::is_on_screen(uint32_t rank, uint64_t since_row) const {
  const bool is_shown = options_.is_shown.empty() || options_.is_shown[rank];
  return !options_.on_line && options_.prefix_lines && is_shown && row() - since_row <= kScreenRows;
}

bool Output::has_room(bool is_stderr) const {
  return options_.on_line != nullptr || !targets_[index_of(is_stderr)].sink.is_full();
}

void Output::watch(std::vector<pollfd>& fds) const {
  for (const Target& target : targets_) {
    if (!target.sink.is_empty()) fds.push_back({target.sink.fd(), POLLOUT, 0});
  }
}

void Output::write_ready() {
  for (Target& target : targets_) target.sink.write_ready();
}

bool Output::is_closed() const {
  return reader_gone_ || targets_[0].sink.error() == EPIPE || targets_[1].sink.error() == EPIPE;
}

std::optional<std::string> Output::take_write_error() {
  for (const Target& target : targets_) {
    const int error = target.sink.error();
    if (error == 0 || error == EPIPE || error_told_) continue;
    error_told_ = true;
    return fmt::format("cannot write to {}: {}; what comes after is lost",
                       &target == &targets_[0] ? "standard output" : "standard error",
                       std::strerror(error));
  }
  return logs_.take_error();
}

void LastLines::add(std::string_view line, uint64_t row) {
  rows_.push_back(row);
  if (rows_.size() > kCount) rows_.pop_front();
  lines_.emplace_back(line.substr(0, kMaxBytes));
  if (line.size() > kMaxBytes) lines_.back() += " ...";
  if (lines_.size() > kCount) lines_.pop_front();
}

}  // namespace lockstep::launch
