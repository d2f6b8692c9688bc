// Files as --model mlp gets them: idx, gzip, CSV, told apart by their bytes.

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/train/row_data.h"
#include "tests/fuzz/fuzz_target.h"

namespace lockstep::fuzz {

using namespace std::string_literals;

std::vector<std::string> seeds() {
  return {"1,2,a\n3,4,b\n5,6,a\n", "x,y\n1,0.5\n2,1.5\n",
          // Images of 2 x 2, and labels; the file is read as both.
          "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"
          "abcdefgh"s,
          "\0\0\x08\x01\0\0\0\x02\x00\x01"s};
}

}  // namespace lockstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile input("a");
  static const fuzz::InputFile labels("labels");
  static const std::string labels_path =
      labels.write(std::string("\0\0\x08\x01\0\0\0\x02\x00\x01", 10));
  const std::string path = input.write(fuzz::text_of(data, size));
  for (const auto& paths : {std::vector{path}, std::vector{path, labels_path}}) {
    try {
      train::RowDataOptions options;
      options.paths = paths;
      options.validation_fraction = size % 2 == 0 ? 0.0 : 0.3;
      const train::RowSplit split = train::load_row_data(options);
      const train::RowData& rows = split.training;
      std::vector<float> inputs(rows.input_count());
      for (uint64_t i = 0; i < rows.row_count(); ++i) {
        rows.copy_inputs(i, inputs.data());
        if (rows.task() == train::Task::kRegression) continue;
        LOCKSTEP_CHECK(static_cast<uint64_t>(rows.target_class(i)) < rows.class_count(),
                       rows.target_class(i), rows.class_count());
      }
    } catch (const Error&) {
    }
  }
  return 0;
}
