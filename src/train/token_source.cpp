#include "src/train/token_source.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/counted.h"
#include "src/train/token_file.h"

namespace lockstep::train {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr uint64_t kSmallFileBytes = 16384;
constexpr size_t kScanBlock = size_t{1} << 16;

using base::counted;
using base::quote_path;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kInput, message); }

bool is_token_file(std::string_view path) { return path.ends_with(".bin"); }

std::span<const uint8_t> head_of(const base::MappedFile& file) {
  return file.bytes().first(std::min<size_t>(file.bytes().size(), kTokenHeaderBytes));
}

// Bytes need not be aligned for Token: a text's small neighbours may lie at any address.
template <typename Token>
uint64_t largest(std::span<const uint8_t> bytes) {
  Token most = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(Token)) {
    Token token;
    std::memcpy(&token, bytes.data() + i, sizeof token);
    most = std::max(most, token);
  }
  return most;
}

uint64_t largest(std::span<const uint8_t> bytes, uint32_t width_bytes) {
  switch (width_bytes) {
    case 1: return largest<uint8_t>(bytes);
    case 2: return largest<uint16_t>(bytes);
    default: return largest<uint32_t>(bytes);
  }
}

template <typename Token>
void convert(std::span<const uint8_t> bytes, int64_t* to) {
  const size_t count = bytes.size() / sizeof(Token);
  for (size_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, bytes.data() + i * sizeof token, sizeof token);
    to[i] = static_cast<int64_t>(token);
  }
}

}  // namespace

TokenSource::TokenSource(const std::vector<std::string>& paths) {
  if (paths.empty()) {
    throw Error(ErrorCode::kUsage,
                "no data was named. Give text files, a folder of text or .bin "
                "token files with --data.");
  }
  for (const std::string& path : paths) add_path(path);
  place_small_files();
  scan();
  write_summary();
}

void TokenSource::add_path(const std::string& path) {
  const auto status = base::file_status(path);
  if (!status && path == "-") {
    refuse(
        "cannot read data from standard input ('-'): every replica reads the data by itself, so "
        "they must be in a file. Save them to one first.");
  }
  if (!status) {
    refuse(fmt::format("cannot read data from {}: there is no such file or folder. Check the path.",
                       quote_path(path)));
  }
  if (status->kind == base::FileKind::kFolder) return add_folder(path);
  if (status->kind != base::FileKind::kRegular) {
    refuse(
        fmt::format("cannot read data from {}: it is {}. Give a text file, a folder of text or a "
                    ".bin token file.",
                    quote_path(path), base::describe(status->kind)));
  }
  if (status->size_bytes == 0) {
    refuse(fmt::format("cannot read data from {}: the file is empty (0 bytes).", quote_path(path)));
  }
  if (is_token_file(path)) return add_token_file(path);
  base::MappedFile file(path);
  if (const auto format = known_binary_format(head_of(file))) {
    refuse(fmt::format(
        "cannot read data from {}: it is {}, not text. Unpack or convert it to text, or "
        "to a .bin token file.",
        quote_path(path), *format));
  }
  add_text(path, std::move(file));
}

void TokenSource::add_folder(const std::string& folder) {
  const base::FolderListing listing = base::list_folder(folder);
  skipped_.folder_links += listing.folder_links;
  skipped_.special += listing.special_files + listing.dangling_links;
  std::set<std::pair<uint64_t, uint64_t>> seen;  // device and inode: links to one file
  const uint64_t tokens_before = token_count_;
  for (const base::FolderFile& entry : listing.files) {
    if (!seen.emplace(entry.status.device, entry.status.inode).second) {
      ++skipped_.duplicates;
    } else if (is_token_file(entry.path)) {
      ++skipped_.token_files;
    } else if (entry.status.size_bytes > 0) {
      base::MappedFile file(entry.path);
      if (known_binary_format(head_of(file))) {
        ++skipped_.binary;
      } else {
        add_text(entry.path, std::move(file));
      }
    }
  }
  if (token_count_ == tokens_before) {
    refuse(
        fmt::format("cannot read data from the folder {}: none of its {} is a text that is not "
                    "empty{}. Give another folder, or name .bin token files one by one.",
                    quote_path(folder), counted(listing.files.size(), "file"), skipped_text()));
  }
}

void TokenSource::add_text(const std::string& path, base::MappedFile file) {
  set_kind(Kind::kText, 1, path);
  add_piece(path, std::move(file), 0, 1);
}

void TokenSource::add_token_file(const std::string& path) {
  base::MappedFile file(path);
  const TokenFileLayout layout = parse_token_file(head_of(file), file.bytes().size(), path);
  if (layout.count == 0) {
    refuse(
        fmt::format("cannot read data from {}: its header announces 0 tokens.", quote_path(path)));
  }
  set_kind(Kind::kTokens, layout.width_bytes, path);
  add_piece(path, std::move(file), layout.offset_bytes, layout.width_bytes);
}

void TokenSource::set_kind(Kind kind, uint32_t width_bytes, const std::string& path) {
  if (kind_ == Kind::kUnknown) {
    kind_ = kind;
    width_bytes_ = width_bytes;
    first_path_ = path;
  }
  const auto name = [](Kind k) { return k == Kind::kText ? "text" : "a .bin token file"; };
  if (kind_ != kind) {
    refuse(
        fmt::format("cannot join {} ({}) with {} ({}): the tokens of the one mean nothing to the "
                    "other. Give only text or only .bin files.",
                    quote_path(first_path_), name(kind_), quote_path(path), name(kind)));
  }
  if (width_bytes_ != width_bytes) {
    refuse(
        fmt::format("cannot join {} ({} bytes a token) with {} ({} bytes a token): they come from "
                    "different tokenizers. Give files of one kind.",
                    quote_path(first_path_), width_bytes_, quote_path(path), width_bytes));
  }
}

void TokenSource::add_piece(const std::string& path, base::MappedFile file, uint64_t offset_bytes,
                            uint32_t width_bytes) {
  const auto bytes = file.bytes().subspan(static_cast<size_t>(offset_bytes));
  Piece piece;
  piece.path = path;
  piece.first_token = token_count_;
  piece.token_count = bytes.size() / width_bytes;
  // Cannot happen with files of one machine, but sparse files may claim 2^63 bytes each. Twice the
  // count, so that first + count of any stretch fits as well.
  if (piece.token_count > (uint64_t{1} << 62) - token_count_) {
    refuse(fmt::format("cannot join the data up to {}: together they have more than 2^62 tokens.",
                       quote_path(path)));
  }
  token_count_ += piece.token_count;
  if (bytes.empty()) return;
  if (bytes.size() < kSmallFileBytes) {
    small_files_.insert(small_files_.end(), bytes.begin(), bytes.end());
  } else {
    piece.bytes = bytes;
    maps_.push_back(std::move(file));
  }
  pieces_.push_back(std::move(piece));
}

// Only now: the block moved while it grew.
void TokenSource::place_small_files() {
  size_t at = 0;
  for (Piece& piece : pieces_) {
    if (!piece.bytes.empty()) continue;
    const auto size = static_cast<size_t>(piece.token_count) * width_bytes_;
    piece.bytes = std::span<const uint8_t>(small_files_).subspan(at, size);
    at += size;
  }
  LOCKSTEP_CHECK(at == small_files_.size(), at, small_files_.size());
}

void TokenSource::scan() {
  for (const Piece& piece : pieces_) {
    vocabulary_needed_ = std::max(vocabulary_needed_, largest(piece.bytes, width_bytes_) + 1);
  }
}

void TokenSource::check_vocabulary(uint64_t vocabulary) const {
  if (vocabulary_needed_ <= vocabulary) return;
  for (const Piece& piece : pieces_) {
    const size_t block = kScanBlock * width_bytes_;
    for (size_t start = 0; start < piece.bytes.size(); start += block) {
      const auto bytes = piece.bytes.subspan(start, std::min(block, piece.bytes.size() - start));
      if (largest(bytes, width_bytes_) < vocabulary) continue;
      size_t at = 0;
      while (largest(bytes.subspan(at, width_bytes_), width_bytes_) < vocabulary)
        at += width_bytes_;
      refuse(fmt::format(
          "the data do not fit the model: token {} of {} has id {}, but the vocabulary has {} ids "
          "(0 to {}). The largest id in the data is {}: make the vocabulary at least {}, or "
          "prepare "
          "the data for this vocabulary.",
          (start + at) / width_bytes_, quote_path(piece.path),
          largest(bytes.subspan(at, width_bytes_), width_bytes_), vocabulary, vocabulary - 1,
          vocabulary_needed_ - 1, vocabulary_needed_));
    }
  }
  // The scan saw such an id and this one did not: a file is being written to.
  refuse(
      fmt::format("the data changed while they were read (first file {}): no id at or above {} is "
                  "left. Wait until they are complete.",
                  quote_path(first_path_), vocabulary));
}

size_t TokenSource::piece_of(uint64_t token) const {
  const auto after = std::upper_bound(
      pieces_.begin(), pieces_.end(), token,
      [](uint64_t wanted, const Piece& piece) { return wanted < piece.first_token; });
  return static_cast<size_t>(after - pieces_.begin()) - 1;
}

void TokenSource::walk(uint64_t first, uint64_t count,
                       const std::function<void(std::span<const uint8_t>)>& visit) const {
  LOCKSTEP_CHECK(first <= token_count_ && count <= token_count_ - first, first + count,
                 token_count_);
  if (count == 0) return;
  for (size_t i = piece_of(first); count > 0; ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t skip = first - piece.first_token;
    const uint64_t taken = std::min(count, piece.token_count - skip);
    visit(piece.bytes.subspan(static_cast<size_t>(skip * width_bytes_),
                              static_cast<size_t>(taken * width_bytes_)));
    first += taken;
    count -= taken;
  }
}

void TokenSource::copy(uint64_t first, uint64_t count, int64_t* to) const {
  walk(first, count, [&](std::span<const uint8_t> bytes) {
    switch (width_bytes_) {
      case 1: convert<uint8_t>(bytes, to); break;
      case 2: convert<uint16_t>(bytes, to); break;
      default: convert<uint32_t>(bytes, to); break;
    }
    to += bytes.size() / width_bytes_;
  });
}

std::string TokenSource::skipped_text() const {
  std::vector<std::string> parts;
  const auto add = [&](uint64_t number, std::string_view one, std::string_view many) {
    if (number > 0) parts.push_back(counted(number, one, many));
  };
  add(skipped_.binary, "binary file", "binary files");
  add(skipped_.token_files, ".bin file", ".bin files");
  add(skipped_.duplicates, "link to a file already read", "links to files already read");
  add(skipped_.folder_links, "link to a folder", "links to folders");
  add(skipped_.special, "special file or dangling link", "special files or dangling links");
  return parts.empty() ? "" : fmt::format("; skipped {}", fmt::join(parts, ", "));
}

void TokenSource::write_summary() {
  summary_ = fmt::format("{}, {}{}",
                         kind_ == Kind::kText ? counted(pieces_.size(), "text file")
                                              : counted(pieces_.size(), "token file"),
                         counted(token_count_, "token"), skipped_text());
}

}  // namespace lockstep::train
