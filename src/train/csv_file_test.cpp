#include "src/train/csv_file.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(const std::string& text, std::vector<uint64_t>* lines = nullptr) {
  const std::string path = "d/a.csv";
  CsvReader reader(text, path);
  Rows rows;
  std::vector<CsvCell> cells;
  while (reader.next(cells)) {
    rows.emplace_back();
    for (const CsvCell& cell : cells) rows.back().push_back(cell.text);
    if (lines != nullptr) lines->push_back(cells.front().line);
  }
  return rows;
}

std::string refusal(const std::string& text) {
  try {
    rows_of(text);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kInput));
    EXPECT_THAT(error.what(), HasSubstr("'d/a.csv'"));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

// Every kind of line end, with and without blank lines and a last one.
TEST(Csv, LineEndsBlankLinesAndAMissingLastEndMeanTheSame) {
  const Rows expected = {{"a", "b"}, {"1", "2"}, {"3", ""}};
  for (const std::string& end : {"\n"s, "\r\n"s, "\r"s}) {
    for (const std::string& blank : {""s, end, end + end}) {
      for (const std::string& last : {""s, end, end + end}) {
        const std::string text = blank + "a,b" + end + "1,2" + end + blank + "3," + last;
        EXPECT_EQ(rows_of(text), expected) << ::testing::PrintToString(text);
      }
    }
  }
  EXPECT_EQ(rows_of("a,b\r1,2\n3,\r\n"), expected);
}

TEST(Csv, QuotedCellsHoldCommasQuotesAndLineEnds) {
  EXPECT_EQ(rows_of("\"a,b\",\"say \"\"hi\"\"\",\"two\r\nlines\",\"\"\n1,2,3,4"),
            (Rows{{"a,b", "say \"hi\"", "two\r\nlines", ""}, {"1", "2", "3", "4"}}));
}

TEST(Csv, LinesAreCountedAsAnEditorDoes) {
  std::vector<uint64_t> lines;
  rows_of("a\r\n\r\n\"x\ny\rz\"\r1\n\n2", &lines);
  EXPECT_THAT(lines, ElementsAre(1, 3, 6, 8));
}

TEST(Csv, AByteOrderMarkIsNoPartOfTheFirstCell) {
  EXPECT_EQ(rows_of("\xef\xbb\xbf\"a\",b"), (Rows{{"a", "b"}}));
  EXPECT_THAT(refusal("\xff\xfe"s + "a\0,\0"s), HasSubstr("UTF-16"));
}

TEST(Csv, BytesAbove127AreKept) {
  EXPECT_EQ(rows_of("\xf0\x9f\x90\x9b,\xe4\xb8\xad\n\xff,e\xcc\x81"),
            (Rows{{"\xf0\x9f\x90\x9b", "\xe4\xb8\xad"}, {"\xff", "e\xcc\x81"}}));
}

TEST(Csv, AnOpenQuoteIsNamedByTheLineWhereItOpened) {
  EXPECT_THAT(refusal("a,b\n1,\"2\n3,4\n"), AllOf(HasSubstr("line 2"), HasSubstr("never closed")));
}

TEST(Csv, TextBehindAClosingQuoteIsRefused) {
  EXPECT_THAT(refusal("a\n\"b\"c"), AllOf(HasSubstr("line 2"), HasSubstr("closing quote")));
}

TEST(Csv, ANulByteIsRefusedWithItsLine) {
  EXPECT_THAT(refusal("a,b\n1,\0"s + "2"), AllOf(HasSubstr("line 2"), HasSubstr("NUL")));
}

TEST(Csv, NothingGivesNoRow) {
  EXPECT_EQ(rows_of(""), Rows{});
  EXPECT_EQ(rows_of("\r\n\n\r"), Rows{});
  EXPECT_EQ(rows_of("\xef\xbb\xbf"), Rows{});
}

}  // namespace
}  // namespace lockstep::train
