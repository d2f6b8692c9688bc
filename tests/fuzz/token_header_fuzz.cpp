#include <algorithm>
#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/token_file.h"
#include "tests/fuzz/fuzz_target.h"

// parse_token_file by itself, with sizes that no file here could have: the last 8 bytes of an input
// are the size, the bytes before them the head of the file.

namespace lockstep::fuzz {
namespace {

constexpr size_t kSizeBytes = sizeof(uint64_t);

std::string file_of(std::string head, uint64_t size_bytes) {
  head.append(reinterpret_cast<const char*>(&size_bytes), kSizeBytes);
  return head;
}

std::string llm_c(uint32_t magic, uint32_t version, uint32_t count, uint64_t width) {
  const uint32_t numbers[] = {magic, version, count};
  std::string head(train::kTokenHeaderBytes, '\0');
  std::memcpy(head.data(), numbers, sizeof numbers);
  return file_of(head, head.size() + count * width);
}

}  // namespace

std::vector<std::string> seeds() {
  return {file_of(std::string(train::kTokenHeaderBytes, '\x01'), uint64_t{1} << 40),
          file_of("abcd", 4), llm_c(20240520, 1, 20, 2), llm_c(20240801, 7, 0x7fffffff, 4)};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  if (size < fuzz::kSizeBytes) return 0;
  const size_t head_bytes = std::min<size_t>(size - fuzz::kSizeBytes, train::kTokenHeaderBytes);
  uint64_t size_bytes = 0;
  std::memcpy(&size_bytes, data + size - fuzz::kSizeBytes, fuzz::kSizeBytes);
  // The head is the whole file when that is shorter than a header.
  size_bytes = head_bytes < train::kTokenHeaderBytes ? head_bytes
                                                     : std::max<uint64_t>(size_bytes, head_bytes);
  // In memory of its own, so that reading on behind the head is seen.
  const std::vector<uint8_t> head(data, data + head_bytes);
  try {
    const auto layout = train::parse_token_file(head, size_bytes, "a.bin");
    LOCKSTEP_CHECK(layout.width_bytes == 2 || layout.width_bytes == 4, layout.width_bytes,
                   "2 or 4");
    LOCKSTEP_CHECK(layout.offset_bytes <= size_bytes, layout.offset_bytes, size_bytes);
    // By division, which cannot overflow; the tokens reach exactly to the end.
    const uint64_t rest = size_bytes - layout.offset_bytes;
    LOCKSTEP_CHECK(rest % layout.width_bytes == 0, rest, layout.width_bytes);
    LOCKSTEP_CHECK(rest / layout.width_bytes == layout.count, rest, layout.count);
  } catch (const Error&) {
  }
  return 0;
}
