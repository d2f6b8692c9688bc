#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The data of a GPT: a stream of tokens, cut into sequences. Everything that is wrong with it is
// found while loading and thrown as Error(kInput) with path and numbers.

namespace lockstep::train {

struct TokenDataOptions {
  /// Text files, folders of text, or .bin token files (token_file.h), joined in the order given.
  /// Text: bytes are tokens, as they are (a BOM, CRLF and NUL are bytes like any other).
  /// A folder: all regular files below it in byte-wise order of their paths, also those that links
  /// lead to, each only once; not .bin files, not files of known binary formats, not what links to
  /// folders lead to. Text and .bin cannot be mixed, nor tokens of 2 and of 4 bytes.
  std::vector<std::string> paths;

  /// Ids must be below this. 0: whatever the data need.
  uint32_t vocabulary = 256;

  /// Tokens of one sequence, at least 1.
  uint32_t context = 0;

  /// Held-out data: a path as above, or a share of the sequences, above 0 and below 1. Not both.
  std::optional<std::string> validation_path;
  double validation_fraction = 0;
};

class TokenSource;

/// A stretch of a token stream, seen as sequences. Sequence i is tokens [i*context, (i+1)*context)
/// with the same shifted by one as targets, so that n tokens give (n-1)/context sequences.
/// Copies share the mapped files. All functions may be called from several threads.
class TokenData {
 public:
  TokenData(std::shared_ptr<const TokenSource> source, uint32_t context, uint64_t first_token,
            uint64_t token_count);

  uint64_t tokens() const { return token_count_; }
  uint64_t sequence_count() const { return token_count_ == 0 ? 0 : (token_count_ - 1) / context_; }
  uint64_t unused_tokens() const;  // at the end, too few for another sequence
  uint32_t context() const { return context_; }

  /// The largest id in the files this stretch is from, and one: what `vocabulary` must at least be.
  uint64_t vocabulary_needed() const;

  /// Bytes of one token in the files and in `walk_bytes`: 1 (text), 2 or 4.
  uint32_t token_bytes() const;

  /// REQUIRES: index < sequence_count(), both arrays have room for context() values.
  void copy_sequence(uint64_t index, int64_t* inputs, int64_t* targets) const;

  /// Hands over all tokens of this stretch in order, as the little-endian bytes of the files
  /// without headers, in pieces of any length: what a hash of the content should cover, besides
  /// token_bytes.
  void walk_bytes(const std::function<void(std::span<const uint8_t>)>& visit) const;

  /// "12 text files, 13723456 tokens; skipped 2 binary files": of the files this stretch is from.
  const std::string& summary() const;

 private:
  std::shared_ptr<const TokenSource> source_;
  uint32_t context_;
  uint64_t first_token_;
  uint64_t token_count_;
};

struct TokenSplit {
  TokenData training;
  /// A file of its own, or the last sequences of the data. Then the first token held out is also
  /// the target of the last training sequence; no token is a target in both.
  std::optional<TokenData> validation;
};

TokenSplit load_token_data(const TokenDataOptions& options);

}  // namespace lockstep::train
