#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/gzip.h"
#include "src/train/gzip_test_support.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {
std::vector<std::string> seeds() {
  return {train::gzip(""), train::gzip("1,2\n3,4\n"), train::gzip(std::string(100'000, 'x')),
          train::gzip("one") + train::gzip("two")};
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
