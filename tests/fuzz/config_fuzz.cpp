#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/config_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"lr = 3e-4\nmodel = \"gpt\"\n", "data = [\"a\", 'b c']\n# comment\naveraging = false\n",
          "global-batch = 1_000\r\nout = \"\\u00e4\\\"\"\r\n"};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  try {
    for (const auto& entry : train::parse_config(fuzz::text_of(data, size), "c.toml")) {
      LOCKSTEP_CHECK(entry.line >= 1 && entry.line <= size + 1, entry.line, size);
    }
  } catch (const Error&) {
  }
  return 0;
}
