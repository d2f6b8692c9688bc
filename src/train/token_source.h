#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/file.h"

namespace lockstep::train {

/// Token files behind each other as one stream of numbers of one width. Large files stay mapped;
/// small ones are copied into one block, since a map takes whole pages and a process may have only
/// some 65,000 of them.
class TokenSource {
 public:
  /// See TokenDataOptions::paths. Throws Error(kInput).
  explicit TokenSource(const std::vector<std::string>& paths);

  uint64_t token_count() const { return token_count_; }
  uint32_t width_bytes() const { return width_bytes_; }
  uint64_t vocabulary_needed() const { return vocabulary_needed_; }
  const std::string& summary() const { return summary_; }

  /// Error(kInput) that names the first token that is not below `vocabulary`.
  void check_vocabulary(uint64_t vocabulary) const;

  /// Calls visit for the bytes of tokens [first, first + count), piece by piece.
  void walk(uint64_t first, uint64_t count,
            const std::function<void(std::span<const uint8_t>)>& visit) const;

  /// The tokens [first, first + count) as int64.
  void copy(uint64_t first, uint64_t count, int64_t* to) const;

 private:
  enum class Kind { kUnknown, kText, kTokens };
  struct Piece {
    std::span<const uint8_t> bytes;  // tokens only; empty for a small file until all are read
    uint64_t first_token = 0;
    uint64_t token_count = 0;
    std::string path;
  };
  struct Skipped {
    uint64_t binary = 0;
    uint64_t token_files = 0;
    uint64_t duplicates = 0;
    uint64_t special = 0;  // FIFOs, sockets, devices, dangling links
    uint64_t folder_links = 0;
  };

  void add_path(const std::string& path);
  void add_folder(const std::string& folder);
  void add_token_file(const std::string& path);
  void add_text(const std::string& path, base::MappedFile file);
  void add_piece(const std::string& path, base::MappedFile file, uint64_t offset_bytes,
                 uint32_t width_bytes);
  void set_kind(Kind kind, uint32_t width_bytes, const std::string& path);
  void place_small_files();
  void scan();
  void write_summary();
  std::string skipped_text() const;
  size_t piece_of(uint64_t token) const;

  std::vector<Piece> pieces_;  // none is empty
  std::vector<base::MappedFile> maps_;
  std::vector<uint8_t> small_files_;
  uint64_t token_count_ = 0;
  uint32_t width_bytes_ = 1;
  Kind kind_ = Kind::kUnknown;
  std::string first_path_;
  uint64_t vocabulary_needed_ = 0;
  Skipped skipped_;
  std::string summary_;
};

}  // namespace lockstep::train
