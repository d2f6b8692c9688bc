#include "src/train/csv_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"

namespace lockstep::train {
namespace {

using namespace std::string_view_literals;

[[noreturn]] void refuse(const std::string& path, uint64_t line, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot read {}, line {}: {}", base::quote_path(path), line, problem));
}

uint64_t line_of(std::string_view text, size_t at) {
  return 1 + static_cast<uint64_t>(
                 std::count(text.begin(), text.begin() + static_cast<long>(at), '\n'));
}

}  // namespace

CsvReader::CsvReader(std::string_view text, const std::string& path) : text_(text), path_(path) {
  if (text_.starts_with("\xff\xfe"sv) || text_.starts_with("\xfe\xff"sv)) {
    refuse(path_, 1, "it is text in UTF-16. Save it as UTF-8.");
  }
  const size_t nul = text_.find('\0');
  if (nul != std::string_view::npos) {
    refuse(path_, line_of(text_, nul), "a NUL byte: this is no text. Expected CSV or an idx file.");
  }
  if (text_.starts_with("\xef\xbb\xbf"sv)) at_ = 3;
}

bool CsvReader::next(std::vector<CsvCell>& cells) {
  while (at_ < text_.size() && at_line_end()) skip_line_end();
  if (at_ >= text_.size()) return false;
  size_t count = 0;
  for (;;) {
    if (cells.size() == count) cells.emplace_back();
    CsvCell& cell = cells[count++];
    cell.text.clear();
    cell.line = line_;
    if (at_ < text_.size() && text_[at_] == '"') {
      read_quoted(cell);
    } else {
      read_plain(cell);
    }
    if (at_ >= text_.size() || at_line_end()) break;
    ++at_;  // the comma
  }
  if (at_ < text_.size()) skip_line_end();
  cells.resize(count);
  return true;
}

void CsvReader::skip_line_end() {
  if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
  ++at_;
  ++line_;
}

void CsvReader::read_plain(CsvCell& cell) {
  const size_t end = std::min(text_.find_first_of(",\r\n"sv, at_), text_.size());
  cell.text = text_.substr(at_, end - at_);
  at_ = end;
}

void CsvReader::read_quoted(CsvCell& cell) {
  ++at_;
  for (;;) {
    const size_t end = text_.find_first_of("\"\r\n"sv, at_);
    if (end == std::string_view::npos) {
      refuse(path_, cell.line, "the quote that opens a cell here is never closed.");
    }
    cell.text += text_.substr(at_, end - at_);
    at_ = end;
    if (text_[at_] != '"') {
      const size_t start = at_;
      skip_line_end();
      cell.text += text_.substr(start, at_ - start);
    } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
      cell.text += '"';
      at_ += 2;
    } else {
      ++at_;
      break;
    }
  }
  if (at_ < text_.size() && text_[at_] != ',' && !at_line_end()) {
    refuse(path_, line_,
           "text follows the closing quote of a cell. A quote inside a cell is written twice.");
  }
}

}  // namespace lockstep::train
