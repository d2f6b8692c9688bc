#include "src/train/idx_file.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"

namespace lockstep::train {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;

struct TypeName {
  uint8_t code;
  std::string_view name;
};
constexpr std::array<TypeName, 6> kTypes = {{{kUnsignedByte, "unsigned bytes"},
                                             {0x09, "signed bytes"},
                                             {0x0b, "16-bit integers"},
                                             {0x0c, "32-bit integers"},
                                             {0x0d, "32-bit floats"},
                                             {0x0e, "64-bit floats"}}};

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot read data from {}: {}", base::quote_path(path), problem));
}

uint8_t byte_at(std::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

const TypeName* type_of(uint8_t code) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [code](const TypeName& type) { return type.code == code; });
  return found == kTypes.end() ? nullptr : found;
}

std::vector<uint32_t> read_sizes(std::string_view bytes, size_t dimensions) {
  std::vector<uint32_t> sizes(dimensions);
  for (size_t i = 0; i < dimensions; ++i) {
    for (size_t j = 0; j < 4; ++j) sizes[i] = sizes[i] << 8 | byte_at(bytes, 4 + 4 * i + j);
  }
  return sizes;
}

}  // namespace

uint64_t IdxLayout::item_size() const {
  uint64_t product = 1;
  for (size_t i = 1; i < sizes.size(); ++i) product *= sizes[i];  // parse_idx() has seen it fit
  return product;
}

bool looks_like_idx(std::string_view bytes) {
  return bytes.size() >= 4 && bytes[0] == 0 && bytes[1] == 0 &&
         type_of(byte_at(bytes, 2)) != nullptr && byte_at(bytes, 3) >= 1 && byte_at(bytes, 3) <= 8;
}

IdxLayout parse_idx(std::string_view bytes, const std::string& path) {
  if (!looks_like_idx(bytes)) {
    std::string start;
    for (size_t i = 0; i < std::min<size_t>(4, bytes.size()); ++i) {
      start += fmt::format("{}{:02x}", i == 0 ? "" : " ", byte_at(bytes, i));
    }
    refuse(path, fmt::format("an idx file starts with 00 00, a type and a number of dimensions; "
                             "this one of {} bytes starts with {}.",
                             bytes.size(), start.empty() ? "nothing" : start));
  }
  const uint8_t type = byte_at(bytes, 2);
  if (type != kUnsignedByte) {
    refuse(path, fmt::format("it holds {} (type 0x{:02x}); expected unsigned bytes (0x08), as "
                             "MNIST has them.",
                             type_of(type)->name, type));
  }
  const size_t dimensions = byte_at(bytes, 3);
  IdxLayout layout;
  layout.offset_bytes = 4 + 4 * dimensions;
  if (bytes.size() < layout.offset_bytes) {
    refuse(path, fmt::format("its header of {} dimensions takes {} bytes, the file has {}.",
                             dimensions, layout.offset_bytes, bytes.size()));
  }
  layout.sizes = read_sizes(bytes, dimensions);
  const std::string shape = fmt::format("{}", fmt::join(layout.sizes, " x "));
  uint64_t expected = 1;
  for (const uint32_t size : layout.sizes) {
    if (size == 0) refuse(path, fmt::format("its header says {}: there is nothing in it.", shape));
    if (__builtin_mul_overflow(expected, uint64_t{size}, &expected)) {
      refuse(path, fmt::format("its header says {} bytes, which no file holds.", shape));
    }
  }
  const uint64_t found = bytes.size() - layout.offset_bytes;
  if (found != expected) {
    refuse(path,
           fmt::format("its header says {} = {} bytes, but {} follow. {}", shape, expected, found,
                       found < expected ? "It was cut off." : "Something was added to it."));
  }
  return layout;
}

std::vector<std::string> label_paths_of(const std::string& images_path) {
  const size_t name_at =
      images_path.rfind('/') == std::string::npos ? 0 : images_path.rfind('/') + 1;
  const size_t images = images_path.rfind("images");
  const size_t dimension = images_path.rfind("idx3");
  if (images == std::string::npos || images < name_at) return {};
  std::string path = images_path;
  if (dimension != std::string::npos && dimension > images) path.replace(dimension, 4, "idx1");
  path.replace(images, 6, "labels");
  std::vector<std::string> paths = {path};
  paths.push_back(path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path + ".gz");
  return paths;
}

}  // namespace lockstep::train
