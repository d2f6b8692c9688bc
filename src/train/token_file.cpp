#include "src/train/token_file.h"

#include <array>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"

namespace lockstep::train {
namespace {

using namespace std::string_view_literals;

constexpr uint32_t kMagicUint16 = 20240520;
constexpr uint32_t kVersionUint16 = 1;
constexpr uint32_t kMagicUint32 = 20240801;
constexpr uint32_t kVersionUint32 = 7;
constexpr uint32_t kMagicEvaluation = 20240522;

struct Signature {
  std::string_view bytes;
  std::string_view name;
};

// Only signatures that hold a byte no text has, or that nobody begins a text with.
constexpr std::array kSignatures = {
    Signature{"\x93NUMPY"sv, "a NumPy array (.npy)"},
    Signature{"PK\x03\x04"sv, "a zip archive (.zip, .npz, .pt)"},
    Signature{"PK\x05\x06"sv, "an empty zip archive"},
    Signature{"PAR1"sv, "a Parquet file"},
    Signature{"ARROW1\0"sv, "an Arrow file"},
    Signature{"\x1f\x8b"sv, "gzip data"},
    Signature{"BZh91AY&SY"sv, "bzip2 data"},
    Signature{"\xfd"
              "7zXZ\0"sv,
              "xz data"},
    Signature{"\x28\xb5\x2f\xfd"sv, "zstd data"},
    Signature{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"},
    Signature{"\x7f"
              "ELF"sv,
              "an ELF program or library"},
    Signature{"!<arch>\n"sv, "an ar archive (.a, .deb)"},
    Signature{"\x89PNG\r\n\x1a\n"sv, "a PNG image"},
    Signature{"\xff\xd8\xff"sv, "a JPEG image"},
    Signature{"GIF89a"sv, "a GIF image"},
    Signature{"%PDF-"sv, "a PDF document"},
    Signature{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    Signature{"SQLite format 3\0"sv, "an SQLite database"},
    Signature{"GGUF"sv, "a GGUF model"},
    Signature{"\0asm"sv, "a WebAssembly module"},
};

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint32_t read_u32(std::span<const uint8_t> bytes, size_t index) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{bytes[4 * index + i]} << (8 * i);
  return value;
}

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot read the token file {}: {}", base::quote_path(path), problem));
}

TokenFileLayout parse_llm_c(std::span<const uint8_t> head, uint64_t size_bytes,
                            const std::string& path) {
  if (head.size() < kTokenHeaderBytes) {
    refuse(path, fmt::format("it begins as a file of llm.c does (magic {}), whose header has {} "
                             "bytes, but holds only {}. It was cut off; copy it again.",
                             read_u32(head, 0), kTokenHeaderBytes, size_bytes));
  }
  const uint32_t magic = read_u32(head, 0);
  const uint32_t version = read_u32(head, 1);
  const uint32_t count = read_u32(head, 2);
  const uint32_t expected = magic == kMagicUint16 ? kVersionUint16 : kVersionUint32;
  if (version != expected) {
    refuse(path,
           fmt::format("its llm.c header has magic {} and version {}; of this magic version {} "
                       "is known. Write the file again with llm.c's scripts.",
                       magic, version, expected));
  }
  // The field is an int32: a negative count comes out above 2^31 here and is refused by the size.
  TokenFileLayout layout;
  layout.width_bytes = magic == kMagicUint16 ? 2 : 4;
  layout.offset_bytes = kTokenHeaderBytes;
  layout.count = count;
  const uint64_t needed = kTokenHeaderBytes + layout.count * layout.width_bytes;
  if (needed != size_bytes || count > 0x7fffffffu) {
    refuse(path, fmt::format("its llm.c header announces {} tokens of {} bytes, so the file should "
                             "have {} bytes; it has {}. It was cut off or damaged; copy it again.",
                             static_cast<int32_t>(count), layout.width_bytes, needed, size_bytes));
  }
  return layout;
}

}  // namespace

TokenFileLayout parse_token_file(std::span<const uint8_t> head, uint64_t size_bytes,
                                 const std::string& path) {
  if (head.size() >= 4) {
    const uint32_t magic = read_u32(head, 0);
    if (magic == kMagicUint16 || magic == kMagicUint32) return parse_llm_c(head, size_bytes, path);
    if (magic == kMagicEvaluation) {
      refuse(path,
             fmt::format("it is an evaluation file of llm.c (magic {}), which holds questions "
                         "and not a stream of tokens. Give a training file (magic {} or {}).",
                         magic, kMagicUint16, kMagicUint32));
    }
  }
  // Two or three bytes can begin any stream of uint16; four or more do by a chance of 2^-32 only.
  const auto format = known_binary_format(head);
  if (format && !text_of(head).starts_with("\x1f\x8b"sv) &&
      !text_of(head).starts_with("\xff\xd8\xff"sv)) {
    refuse(path,
           fmt::format("it is {}. Give uint16 tokens (nanoGPT) or a file with llm.c's header.",
                       *format));
  }
  if (size_bytes % 2 != 0) {
    refuse(path,
           fmt::format("without an llm.c header it should hold uint16 tokens, 2 bytes each, but "
                       "its {} bytes are an odd number. It was cut off, or it is another "
                       "format; rename it to .txt to read its bytes as text.",
                       size_bytes));
  }
  return {.width_bytes = 2, .offset_bytes = 0, .count = size_bytes / 2};
}

std::optional<std::string_view> known_binary_format(std::span<const uint8_t> head) {
  const std::string_view text = text_of(head);
  for (const Signature& signature : kSignatures) {
    if (!text.starts_with(signature.bytes)) continue;
    // A text may well begin with "PAR1" or "GGUF"; what follows in such a file is no text.
    const bool only_letters = signature.bytes == "PAR1"sv || signature.bytes == "GGUF"sv;
    if (only_letters && text.substr(0, 64).find_first_of("\0\x01\x02\x03\x04\x15"sv) == text.npos) {
      continue;
    }
    return signature.name;
  }
  return std::nullopt;
}

}  // namespace lockstep::train
