#include "src/train/row_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/hash.h"
#include "src/base/temp_folder.h"
#include "src/report/comma_locale.h"
#include "src/train/gzip_test_support.h"

namespace lockstep::train {
namespace {

using namespace std::string_literals;
using base::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string big_endian(const std::vector<uint32_t>& numbers) {
  std::string bytes;
  for (const uint32_t number : numbers) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(number >> shift);
  }
  return bytes;
}

std::string images(uint32_t count, uint32_t side, const std::string& numbers) {
  return big_endian({0x803, count, side, side}) + numbers;
}

std::string labels(const std::string& numbers) {
  return big_endian({0x801, static_cast<uint32_t>(numbers.size())}) + numbers;
}

RowDataOptions options_for(std::vector<std::string> paths, const std::string& target = "") {
  RowDataOptions options;
  options.paths = std::move(paths);
  options.target = target;
  return options;
}

std::string refusal(const RowDataOptions& options, ErrorCode code = ErrorCode::kInput) {
  try {
    load_row_data(options);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

std::string csv_refusal(const std::string& text, ErrorCode code = ErrorCode::kInput) {
  const TempFolder folder;
  return refusal(options_for({folder.write("a.csv", text)}), code);
}

std::vector<float> inputs_of(const RowData& data, uint64_t index) {
  std::vector<float> inputs(data.input_count());
  data.copy_inputs(index, inputs.data());
  return inputs;
}

std::vector<int64_t> classes_of(const RowData& data) {
  std::vector<int64_t> classes;
  for (uint64_t i = 0; i < data.row_count(); ++i) classes.push_back(data.target_class(i));
  return classes;
}

std::string content(const RowData& data) {
  std::string bytes;
  data.walk_bytes([&](std::span<const uint8_t> part) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  return bytes;
}

RowData load_text(const std::string& text, const std::string& target = "") {
  const TempFolder folder;
  return load_row_data(options_for({folder.write("a.csv", text)}, target)).training;
}

// -- idx ------------------------------------------------------------------------------------------

TEST(RowDataIdx, ImagesAreBytesOver255AndLabelsClasses) {
  const TempFolder folder;
  const auto path = folder.write("train-images-idx3-ubyte", images(2, 2, "\x00\x33\xff\x01wxyz"s));
  folder.write("train-labels-idx1-ubyte", labels("\x07\x02"));
  const RowSplit split = load_row_data(options_for({path}));
  EXPECT_THAT(inputs_of(split.training, 0), ElementsAre(0.0f, 0.2f, 1.0f, 1.0f / 255));
  EXPECT_THAT(classes_of(split.training), ElementsAre(7, 2));
  EXPECT_EQ(split.training.class_count(), 8u);
  EXPECT_EQ(split.training.summary(), "2 images of 2 x 2");
  EXPECT_FALSE(split.validation);
}

TEST(RowDataIdx, PlainGzipFolderAndPairAreTheSameData) {
  const TempFolder folder;
  const std::string pixels = images(3, 2, "abcdefghijkl");
  const std::string digits = labels("\x00\x01\x01"s);
  const auto plain = folder.write("p/train-images-idx3-ubyte", pixels);
  const auto plain_labels = folder.write("p/train-labels-idx1-ubyte", digits);
  const auto packed = folder.write("g/train-images.idx3-ubyte.gz", gzip(pixels));
  folder.write("g/train-labels.idx1-ubyte", digits);
  const auto other = folder.write("o/x", gzip(digits));
  const std::string expected = content(load_row_data(options_for({plain})).training);
  for (const auto& paths : std::vector<std::vector<std::string>>{{folder.path("p")},
                                                                 {packed},
                                                                 {folder.path("g")},
                                                                 {plain, plain_labels},
                                                                 {other, packed}}) {
    EXPECT_EQ(content(load_row_data(options_for(paths)).training), expected) << paths[0];
  }
}

TEST(RowDataIdx, WhatDoesNotBelongTogetherIsRefused) {
  const TempFolder folder;
  const auto two = folder.write("two", images(2, 2, "abcdefgh"));
  const auto one = folder.write("one", labels("\x01"));
  EXPECT_THAT(refusal(options_for({two, one})),
              AllOf(HasSubstr("2 images"), HasSubstr("1 labels"), HasSubstr("belong together")));
  EXPECT_THAT(refusal(options_for({one})), HasSubstr("expected images"));
  EXPECT_THAT(refusal(options_for({two, two})), HasSubstr("expected labels"));
  EXPECT_THAT(refusal(options_for({one, one})), HasSubstr("expected images"));
  EXPECT_THAT(refusal(options_for({two})), HasSubstr("which file holds their labels"));
  EXPECT_THAT(refusal(options_for({two, one, one})), HasSubstr("not more"));
  const auto csv = folder.write("a.csv", "1,2\n3,4\n");
  EXPECT_THAT(refusal(options_for({two, csv})), HasSubstr("cannot be joined"));
  EXPECT_THAT(refusal(options_for({folder.write("train-images-idx3-ubyte", images(1, 1, "a"))})),
              HasSubstr("train-labels-idx1-ubyte.gz'"));
  EXPECT_THAT(refusal(options_for({folder.path()}, "")), HasSubstr("labels are missing"));
  const TempFolder empty;
  EXPECT_THAT(refusal(options_for({empty.path()})), HasSubstr("no train-images-idx3-ubyte"));
}

TEST(RowDataIdx, AFolderAsHeldOutDataGivesItsTestImages) {
  const TempFolder folder;
  folder.write("train-images-idx3-ubyte", images(2, 1, "ab"));
  folder.write("train-labels-idx1-ubyte", labels("\x01\x02"));
  RowDataOptions options = options_for({folder.path()});
  options.validation_path = folder.path();
  EXPECT_THAT(refusal(options), HasSubstr("t10k-images-idx3-ubyte"));
  folder.write("t10k-images-idx3-ubyte.gz", gzip(images(3, 1, "cde")));
  folder.write("t10k-labels-idx1-ubyte", labels("\x02\x01\x02"));
  const RowSplit split = load_row_data(options);
  EXPECT_THAT(classes_of(split.training), ElementsAre(1, 2));
  EXPECT_THAT(classes_of(*split.validation), ElementsAre(2, 1, 2));
}

TEST(RowDataIdx, OptionsOfCsvAreRefused) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.write("i", images(1, 1, "a")),
                                          folder.write("l", labels("\x01"))};
  EXPECT_THAT(refusal(options_for(paths, "digit"), ErrorCode::kUsage), HasSubstr("--target"));
  RowDataOptions regression = options_for(paths);
  regression.task = Task::kRegression;
  EXPECT_THAT(refusal(regression, ErrorCode::kUsage), HasSubstr("are classes"));
}

TEST(RowDataIdx, ValidationMustFitTheTrainingData) {
  const TempFolder folder;
  RowDataOptions options =
      options_for({folder.write("i", images(2, 1, "ab")), folder.write("l", labels("\x01\x02"))});
  options.validation_path = folder.write("v-images", images(1, 1, "c"));
  const auto held_out_labels = folder.write("v-labels", labels("\x01"));
  EXPECT_THAT(classes_of(*load_row_data(options).validation), ElementsAre(1));
  folder.write("v-labels", labels("\x03"));
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("the label 3"), HasSubstr("from 0 to 2")));
  folder.write("v-labels", labels("\x01"));
  folder.write("v-images", images(1, 2, "cdef"));
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("have 4 numbers"), HasSubstr("to train on 1")));
}

// -- CSV ------------------------------------------------------------------------------------------

TEST(RowDataCsv, InputsAreStandardisedByTheTrainingRowsAlone) {
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("t.csv", "x,c,y\n1,5,0.5\n3,5,1.5\n")});
  options.validation_path = folder.write("v.csv", "x,c,y\n7,6,2\n");
  const RowSplit split = load_row_data(options);
  EXPECT_EQ(split.training.task(), Task::kRegression);
  EXPECT_EQ(split.training.class_count(), 0u);
  // x: mean 2, deviation 1; c is constant.
  EXPECT_THAT(inputs_of(split.training, 0), ElementsAre(-1.0f, 0.0f));
  EXPECT_THAT(inputs_of(split.training, 1), ElementsAre(1.0f, 0.0f));
  EXPECT_THAT(inputs_of(*split.validation, 0), ElementsAre(5.0f, 1.0f));
  EXPECT_EQ(split.training.target_value(1), 1.5f);
  EXPECT_EQ(split.validation->target_value(0), 2.0f);
  EXPECT_EQ(split.training.summary(), "2 rows of 2 numbers, with header; target 'y': a number");
}

TEST(RowDataCsv, WordsAreClassesInByteOrder) {
  const RowData data = load_text("1,b\n2,a\n3,b\n4,\"C, d\"\n");
  EXPECT_EQ(data.task(), Task::kClassification);
  EXPECT_THAT(data.class_names(), ElementsAre("C, d", "a", "b"));
  EXPECT_THAT(classes_of(data), ElementsAre(2, 1, 2, 0));
  EXPECT_EQ(data.summary(), "4 rows of 1 number, no header; target column 2: 3 classes");
}

TEST(RowDataCsv, WholeNumbersNeedTheTaskToBeSaid) {
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("a.csv", "x,n\n1,10\n2,9\n3,9.0\n")});
  EXPECT_THAT(refusal(options, ErrorCode::kUsage),
              AllOf(HasSubstr("column 2 ('n')"), HasSubstr("from 9 to 10"),
                    HasSubstr("--task classification or --task regression")));
  options.task = Task::kRegression;
  EXPECT_EQ(load_row_data(options).training.target_value(0), 10.0f);
  options.task = Task::kClassification;
  const RowData data = load_row_data(options).training;
  EXPECT_THAT(data.class_names(), ElementsAre("9", "10"));
  EXPECT_THAT(classes_of(data), ElementsAre(1, 0, 0));
}

TEST(RowDataCsv, AWordAmongFractionsIsRefusedWithItsPlace) {
  EXPECT_THAT(csv_refusal("1,0.5\n2,1.O\n3,2\n"),
              AllOf(HasSubstr("line 2, column 2"), HasSubstr("'1.O' is no number, but 0.5")));
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("a.csv", "1,0.5\n2,x\n")});
  options.task = Task::kClassification;
  EXPECT_THAT(load_row_data(options).training.class_names(), ElementsAre("0.5", "x"));
}

TEST(RowDataCsv, AConstantColumnIsZeroAlsoWhereItsMeanIsRounded) {
  const RowData data = load_text("0.1,a\n0.1,b\n0.1,a\n");
  for (uint64_t row = 0; row < 3; ++row) EXPECT_THAT(inputs_of(data, row), ElementsAre(0.0f));
}

TEST(RowDataCsv, ATaskThatTheTargetsContradictIsRefusedWithThePlace) {
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("a.csv", "x,n\n1,1\n\n2,red\n")});
  options.task = Task::kRegression;
  EXPECT_THAT(refusal(options, ErrorCode::kUsage), AllOf(HasSubstr("line 4"), HasSubstr("'red'")));
  options.paths = {folder.write("b.csv", "x,n\n1,1\n2,0.5\n")};
  options.task = Task::kClassification;
  EXPECT_THAT(refusal(options, ErrorCode::kUsage), AllOf(HasSubstr("line 3"), HasSubstr("0.5")));
}

TEST(RowDataCsv, TheTargetIsAColumnByNameOrNumber) {
  const std::string text = "y,a,2\n1.5,2.25,3.75\n2.5,4,9\n";
  EXPECT_EQ(load_text(text).target_value(0), 3.75f);
  EXPECT_EQ(load_text(text, "y").target_value(0), 1.5f);
  EXPECT_EQ(load_text(text, "1").target_value(0), 1.5f);
  EXPECT_EQ(load_text(text, "2").target_value(0), 3.75f);  // a name wins over a number
}

TEST(RowDataCsv, UnknownTargetsAreRefusedWithTheNames) {
  const TempFolder folder;
  const auto path = folder.write("a.csv", "x,y,x\n1,2.5,3\n");
  EXPECT_THAT(refusal(options_for({path}, "z"), ErrorCode::kUsage),
              AllOf(HasSubstr("'z'"), HasSubstr("'x', 'y', 'x'")));
  EXPECT_THAT(refusal(options_for({path}, "4"), ErrorCode::kUsage), HasSubstr("3 columns"));
  EXPECT_THAT(refusal(options_for({path}, "0"), ErrorCode::kUsage), HasSubstr("3 columns"));
  EXPECT_THAT(refusal(options_for({path}, "x"), ErrorCode::kUsage), HasSubstr("several columns"));
  EXPECT_EQ(load_row_data(options_for({path}, "y")).training.target_value(0), 2.5f);
}

struct BadCell {
  const char* text;
  const char* problem;
};

class RowDataCsvCell : public ::testing::TestWithParam<BadCell> {};

TEST_P(RowDataCsvCell, IsRefusedByFileLineAndColumn) {
  // On physical line 4: behind a blank line, in a file of CRLF.
  const std::string text = "a,\"b, c\",y\r\n\r\n1,2,0.5\r\n3,"s + GetParam().text + ",1.5\r\n";
  EXPECT_THAT(csv_refusal(text),
              AllOf(HasSubstr("a.csv', line 4, column 2 ('b, c')"), HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(
    All, RowDataCsvCell,
    ::testing::Values(BadCell{"", "empty"}, BadCell{"  ", "empty"}, BadCell{"\"\"", "empty"},
                      BadCell{"word", "'word' is no number"}, BadCell{"1x", "'1x' is no number"},
                      BadCell{"\"1,5\"", "'1,5' is no number"}, BadCell{"0x10", "is no number"},
                      BadCell{"1 2", "is no number"}, BadCell{"--1", "is no number"},
                      BadCell{"+-1", "is no number"}, BadCell{"nan", "'nan' is not finite"},
                      BadCell{"-inf", "'-inf' is not finite"}, BadCell{"1e999", "is not finite"},
                      BadCell{"1e39", "'1e39' is not finite"}),
    [](const auto& cell) { return "Cell" + std::to_string(cell.index); });

TEST(RowDataCsv, NumbersMayHaveSignsBlanksAndExponents) {
  const RowData data = load_text("+1,a\n \t-1 ,b\n\"1e0\",c\n-.1e1,d\n1e-999,e\n");
  // 1 -1 1 -1 0: mean 0, deviation sqrt(4/5).
  const float one = static_cast<float>(1 / std::sqrt(0.8));
  EXPECT_THAT(inputs_of(data, 0), ElementsAre(one));
  EXPECT_THAT(inputs_of(data, 3), ElementsAre(-one));
  EXPECT_THAT(inputs_of(data, 4), ElementsAre(0.0f));
}

TEST(RowDataCsv, ARaggedRowIsRefusedWithBothCounts) {
  EXPECT_THAT(csv_refusal("1,2,a\n3,4\n"),
              AllOf(HasSubstr("line 2: 2 cells, but 3 columns"), HasSubstr("quotes around")));
  EXPECT_THAT(csv_refusal("1,2,a\n\n3,4,b,\n"), HasSubstr("line 3: 4 cells"));
}

TEST(RowDataCsv, TooLittleIsRefused) {
  EXPECT_THAT(csv_refusal("a\nb\n"), HasSubstr("one column"));
  EXPECT_THAT(csv_refusal("\n\n"), HasSubstr("not one line"));
  EXPECT_THAT(csv_refusal("a,b\n"), HasSubstr("not one row"));
  EXPECT_THAT(csv_refusal("1,\n"), HasSubstr("line 1, column 2: the cell is empty"));
  EXPECT_THAT(csv_refusal("1,inf\n2,3\n"), HasSubstr("'inf' is not finite"));
}

TEST(RowDataCsv, FilesAreJoinedIfTheirColumnsAreTheSame) {
  const TempFolder folder;
  const auto one = folder.write("1.csv", "x,y\n1,0.5\n");
  const auto two = folder.write("2.csv.gz", gzip("\"x\",y\n3,1.5\n"));
  const RowData data = load_row_data(options_for({one, two})).training;
  EXPECT_EQ(data.row_count(), 2u);
  EXPECT_EQ(data.target_value(1), 1.5f);
  EXPECT_THAT(refusal(options_for({one, folder.write("5.csv", "x,y,more\n1,2,3\n")})),
              HasSubstr("'more' as column 3"));
  EXPECT_THAT(refusal(options_for({one, folder.write("3.csv", "x,z\n1,2\n")})),
              AllOf(HasSubstr("'z' as column 2"), HasSubstr("'y'")));
}

TEST(RowDataCsv, AClassThatTrainingLacksIsRefusedInValidation) {
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("t.csv", "1,a\n2,b\n")});
  options.validation_path = folder.write("v.csv", "1,a\n2,c\n");
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("v.csv', line 2"), HasSubstr("class 'c'")));
  options.validation_path = folder.write("v.csv", "1,2,a\n");
  EXPECT_THAT(refusal(options), HasSubstr("columns are not those of"));
}

TEST(RowDataCsv, EveryLocaleAndLineEndGivesTheSameContent) {
  const std::string text = "\xef\xbb\xbfx,\xc3\xa4,y\n1.5,2,\xf0\x9f\x90\x9b\n2.5,1e3,b\n";
  const std::string expected = content(load_text(text));
  std::string windows;
  for (const char c : text) windows += c == '\n' ? "\r\n"s : std::string(1, c);
  EXPECT_EQ(content(load_text(windows)), expected);
  const report::CommaLocale locale;
  ASSERT_TRUE(report::CommaLocale::c_locale_uses_comma());
  EXPECT_EQ(content(load_text(text)), expected);
}

TEST(RowDataCsv, TheContentTellsApartWhatTrainsDifferently) {
  const std::string base = content(load_text("1,2,a\n2,1,b\n"));
  EXPECT_NE(content(load_text("1,2,b\n2,1,a\n")), base);
  EXPECT_NE(content(load_text("1,2,a\n2,3,b\n")), base);
  EXPECT_NE(content(load_text("1,2,a\n2,1,c\n")), base);
}

// -- Splits and paths ----------------------------------------------------------------------------

TEST(RowDataSplit, EveryRowIsOnExactlyOneSide) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + ",0." + std::to_string(i) + "5\n";
  RowDataOptions options = options_for({folder.write("a.csv", text)});
  options.validation_fraction = 0.25;
  const RowSplit split = load_row_data(options);
  EXPECT_EQ(split.training.row_count(), 75u);
  ASSERT_TRUE(split.validation);
  EXPECT_EQ(split.validation->row_count(), 25u);
  std::vector<float> values;
  for (uint64_t i = 0; i < 75; ++i) values.push_back(split.training.target_value(i));
  for (uint64_t i = 0; i < 25; ++i) values.push_back(split.validation->target_value(i));
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
  EXPECT_EQ(content(*load_row_data(options).validation), content(*split.validation));
}

TEST(RowDataSplit, AShareOfNoRowOrOfAllIsRefusedWithTheNumbers) {
  const TempFolder folder;
  RowDataOptions options = options_for({folder.write("a.csv", "1,0.5\n2,1.5\n")});
  for (const double share : {0.1, 0.9}) {
    options.validation_fraction = share;
    EXPECT_THAT(refusal(options), AllOf(HasSubstr("2 rows"), HasSubstr("at least one row")));
  }
}

TEST(RowData, WhatIsNoTableIsRefusedByName) {
  const TempFolder folder;
  EXPECT_THAT(refusal(options_for({folder.path("none")})), HasSubstr("no such file"));
  EXPECT_THAT(refusal(options_for({folder.write("empty", "")})), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal(options_for({"-"})), HasSubstr("standard input"));
  EXPECT_THAT(refusal(options_for({"/dev/null"})), HasSubstr("device"));
  EXPECT_THAT(refusal(options_for({folder.write("t.bin", "1234")})), HasSubstr("--model gpt"));
  EXPECT_THAT(refusal(options_for({folder.write("a.npy", "\x93NUMPY\x01"s)})), HasSubstr("NumPy"));
  EXPECT_THAT(refusal(options_for({folder.write("a.zip", "PK\x03\x04zzzz"s)})), HasSubstr("zip"));
  EXPECT_THAT(refusal(options_for({folder.write("a.gz", "\x1f\x8b\x08"s)})),
              HasSubstr("too early"));
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal(options_for({fifo})), HasSubstr("FIFO"));
}

TEST(RowData, PathsMayHoldBlanksAnyLettersAnd255Bytes) {
  const TempFolder folder;
  for (const std::string& name :
       {"two words.csv"s, "\xe6\x95\xb0\xe6\x8d\xae.csv"s, std::string(251, 'n') + ".csv"}) {
    const auto path = folder.write(name, "1,0.5\n2,1.5\n");
    EXPECT_EQ(load_row_data(options_for({path})).training.row_count(), 2u) << name;
  }
}

}  // namespace
}  // namespace lockstep::train
