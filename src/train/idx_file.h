#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// MNIST's format, idx: a magic number 00 00 TYPE DIMENSIONS, the sizes as big-endian uint32, then
// the numbers. Source: LeCun, Cortes, Burges, "The MNIST database". Nothing here reads files or
// trusts a number in one.

namespace lockstep::train {

struct IdxLayout {
  std::vector<uint32_t> sizes;  // [dimension]
  uint64_t offset_bytes = 0;    // of the first number

  uint64_t item_count() const { return sizes.front(); }
  uint64_t item_size() const;  // numbers of one item: the product of the other sizes
};

/// Whether a file that begins so can only be idx.
bool looks_like_idx(std::string_view bytes);

/// Of a whole file (unpacked) with numbers of one byte. Throws Error(kInput), naming `path` and the
/// numbers, for any other file.
IdxLayout parse_idx(std::string_view bytes, const std::string& path);

/// The names under which the labels of an images file are looked for, the likeliest first; empty
/// where its name says nothing ("train-images-idx3-ubyte.gz" does).
std::vector<std::string> label_paths_of(const std::string& images_path);

}  // namespace lockstep::train
