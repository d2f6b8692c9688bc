#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/launch/launcher.h"
#include "src/launch/log_files.h"

namespace lockstep::launch {

/// Bytes on their way to a descriptor that may be slow, or shared with other processes: it is never
/// set to non-blocking and never written to before poll() says so.
class OutputSink {
 public:
  static constexpr size_t kFull = size_t{256} * 1024;

  explicit OutputSink(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  bool is_empty() const { return pending_.size() == begin_; }
  bool is_full() const { return pending_.size() - begin_ >= kFull; }  // do not read more for it
  int error() const { return error_; }  // errno of the write that failed; all after it is dropped

  void append(std::string_view bytes);

  /// Writes what can be written without waiting.
  void write_ready();

 private:
  int fd_;
  std::string pending_;
  size_t begin_ = 0;  // of what is still to be written
  int error_ = 0;
};

/// Where the lines of all replicas and the launcher's sentences go: to the callbacks of the
/// options, or else to their descriptors.
class Output {
 public:
  explicit Output(const LaunchOptions& options);

  void line(const OutputLine& line);

  /// Bytes as a replica has printed them, for its files. REQUIRES: all of them come here.
  void keep(uint32_t rank, bool is_stderr, std::string_view bytes);

  void notice(std::string_view sentence);

  /// False: what comes from there should stay unread for now.
  bool has_room(bool is_stderr) const;

  /// Adds what poll() should wait for, to write more.
  void watch(std::vector<pollfd>& fds) const;
  void write_ready();
  bool is_empty() const { return targets_[0].sink.is_empty() && targets_[1].sink.is_empty(); }

  /// Ends a line on stderr that a replica has left unfinished.
  void end_line();

  /// Rows that have gone to standard error so far, as a terminal shows them. Always 0 where
  /// callbacks get the lines.
  uint64_t row() const { return targets_[index_of(true)].rows; }

  /// Whether what that rank has printed to standard error since that row is still to be seen, with
  /// its rank, once all that is there is shown.
  bool is_on_screen(uint32_t rank, uint64_t since_row) const;

  /// Nobody reads what the replicas print.
  bool is_closed() const;

  /// A write error other than that: the first of these streams, and the first of the files.
  std::optional<std::string> take_write_error();

 private:
  struct Target {
    OutputSink sink;
    uint64_t rows = 0;
    std::optional<uint32_t> open_rank;  // an unfinished line of that rank stands at the end
  };

  size_t index_of(bool is_stderr) const { return is_stderr && !is_shared_ ? 1 : 0; }
  void append_line(const OutputLine& line);

  const LaunchOptions& options_;
  LogFiles logs_;
  // Both descriptors lead to one file (2>&1, a terminal): one sink then, or else the lines of one
  // stream would stand within those of the other wherever a reader is slow.
  const bool is_shared_;
  std::array<Target, 2> targets_;  // [index_of(is_stderr)]
  bool reader_gone_ = false;
  bool error_told_ = false;
};

/// The last lines that a replica printed to stderr, for the report of its death.
class LastLines {
 public:
  static constexpr size_t kCount = 12;
  static constexpr size_t kMaxBytes = 400;

  void add(std::string_view line, uint64_t row);
  const std::deque<std::string>& lines() const { return lines_; }
  uint64_t first_row() const { return rows_.empty() ? 0 : rows_.front(); }

 private:
  std::deque<std::string> lines_;
  std::deque<uint64_t> rows_;  // of the output when the line came
};

}  // namespace lockstep::launch
