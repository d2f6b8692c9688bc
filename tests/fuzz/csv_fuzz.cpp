#include <cmath>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/csv_table.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"a,b,c\n1,2,x\n3,4,y\n", "1,2.5\r\n-3e4,0\r\n", "\"a\",\"b, \"\"c\"\"\"\r1,\"2\r\n\"\r",
          "\xef\xbb\xbf"
          "x;y,\xc3\xa4\n\n 1 ,+2\n"};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  // The first byte chooses how the target is named.
  const char* targets[] = {"", "1", "2", "b", "a", "c"};
  const std::string target = size == 0 ? "" : targets[data[0] % 6];
  try {
    train::CsvTable table;
    const std::string path = "a.csv";
    train::add_csv(table, fuzz::text_of(data, size), path, target);
    LOCKSTEP_CHECK(table.inputs.size() == table.row_count() * table.input_count(),
                   table.inputs.size(), table.row_count());
    LOCKSTEP_CHECK(table.places.size() == table.row_count(), table.places.size(),
                   table.row_count());
    LOCKSTEP_CHECK(table.row_count() > 0 && table.input_count() > 0, table.row_count(),
                   table.input_count());
    for (const double input : table.inputs) {
      LOCKSTEP_CHECK(std::isfinite(static_cast<float>(input)), input, 0);
    }
    const auto numbers = train::numeric_targets(table);
    LOCKSTEP_CHECK(!numbers || numbers->size() == table.row_count(), table.row_count(), 0);
    train::add_csv(table, fuzz::text_of(data, size), path, target);  // joined with itself
  } catch (const Error&) {
  }
  return 0;
}
