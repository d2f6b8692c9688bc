#include <cstring>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/token_data.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {
namespace {

// With llm.c's header; `width` 2 or 4.
std::string llm_c(uint32_t magic, uint32_t version, uint32_t count, uint32_t width) {
  const uint32_t numbers[] = {magic, version, count};
  std::string bytes(1024, '\0');
  std::memcpy(bytes.data(), numbers, sizeof numbers);
  return bytes + std::string(size_t{count} * width, '\x05');
}

}  // namespace

std::vector<std::string> seeds() {
  return {std::string(40, '\x01'), llm_c(20240520, 1, 20, 2), llm_c(20240801, 7, 20, 4)};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile binary("a.bin");
  static const fuzz::InputFile text("a.txt");
  for (const fuzz::InputFile* file : {&binary, &text}) {
    try {
      train::TokenDataOptions options;
      options.paths = {file->write(fuzz::text_of(data, size))};
      options.context = 3;
      options.vocabulary = 0;
      options.validation_fraction = size % 2 == 0 ? 0.0 : 0.3;
      const train::TokenSplit split = train::load_token_data(options);
      int64_t inputs[3];
      int64_t targets[3];
      for (uint64_t i = 0; i < split.training.sequence_count(); ++i) {
        split.training.copy_sequence(i, inputs, targets);
        LOCKSTEP_CHECK(targets[0] == inputs[1] && targets[1] == inputs[2], targets[0], inputs[1]);
      }
    } catch (const Error&) {
    }
  }
  return 0;
}
