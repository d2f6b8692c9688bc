#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

/// One cell of a CSV text and where it begins.
struct CsvCell {
  std::string text;   // quotes taken away
  uint64_t line = 0;  // physical, from 1
};

/// Reads CSV as RFC 4180 has it: cells between commas, in double quotes where they hold commas,
/// quotes (doubled) or line ends. Line ends are LF, CRLF or a lone CR, also mixed; the last may be
/// missing. Lines with nothing in them are skipped. A UTF-8 byte order mark at the start is none of
/// the first cell. Bytes above 127 are kept as they are; NUL bytes are refused.
class CsvReader {
 public:
  /// `text` and `path` (for messages) must outlive the reader. Throws Error(kInput).
  CsvReader(std::string_view text, const std::string& path);

  /// The next row into `cells`; false at the end.
  bool next(std::vector<CsvCell>& cells);

 private:
  bool at_line_end() const { return text_[at_] == '\n' || text_[at_] == '\r'; }
  void skip_line_end();
  void read_quoted(CsvCell& cell);
  void read_plain(CsvCell& cell);

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  uint64_t line_ = 1;
};

}  // namespace lockstep::train
