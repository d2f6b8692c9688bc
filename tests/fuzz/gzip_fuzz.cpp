#include <zlib.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/gzip.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {
namespace {

std::string packed(const std::string& text) {
  z_stream stream{};
  ::deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string bytes(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  ::deflate(&stream, Z_FINISH);
  bytes.resize(stream.total_out);
  ::deflateEnd(&stream);
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  return {packed(""), packed("1,2\n3,4\n"), packed(std::string(100'000, 'x')),
          packed("one") + packed("two")};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  constexpr uint64_t kLimit = 1 << 20;
  static const fuzz::InputFile input("a.gz");
  try {
    const std::string bytes = train::read_unpacked(input.write(fuzz::text_of(data, size)), kLimit);
    LOCKSTEP_CHECK(bytes.size() <= kLimit, bytes.size(), kLimit);
  } catch (const Error&) {
  }
  return 0;
}
