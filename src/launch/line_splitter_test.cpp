#include "src/launch/line_splitter.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

struct Piece {
  std::string text;
  bool has_newline;
  bool operator==(const Piece&) const = default;
};

class LineSplitterTest : public testing::Test {
 protected:
  void feed(std::string_view bytes) { splitter_.feed(bytes, emit_); }
  void flush() { splitter_.flush(emit_); }

  std::vector<Piece> pieces_;
  LineSplitter splitter_;
  LineSplitter::Emit emit_ = [this](std::string_view text, bool has_newline) {
    pieces_.push_back({std::string(text), has_newline});
  };
};

TEST_F(LineSplitterTest, EmitsWholeLinesOnly) {
  feed("one\ntw");
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"one", true}}));
  EXPECT_TRUE(splitter_.has_partial());
  feed("o\n\n");
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"one", true}, {"two", true}, {"", true}}));
  EXPECT_FALSE(splitter_.has_partial());
}

TEST_F(LineSplitterTest, FlushShowsAnUnfinishedLineOnce) {
  feed("loading");
  flush();
  flush();
  feed(" done\n");
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"loading", false}, {" done", true}}));
}

TEST_F(LineSplitterTest, LineOfExactlyTheLimitStaysWhole) {
  const std::string line(LineSplitter::kMaxPiece, 'x');
  feed(line);
  EXPECT_TRUE(pieces_.empty());
  feed("\n");
  feed(line + "\n");
  EXPECT_EQ(pieces_, (std::vector<Piece>{{line, true}, {line, true}}));
}

TEST_F(LineSplitterTest, LongerLinesComeInPiecesHoweverTheyArrive) {
  const std::string line(LineSplitter::kMaxPiece * 2 + 5, 'y');
  for (const size_t step : {size_t{1000}, LineSplitter::kMaxPiece, line.size()}) {
    pieces_.clear();
    for (size_t at = 0; at < line.size(); at += step) feed(std::string_view(line).substr(at, step));
    feed("\n");
    ASSERT_EQ(pieces_.size(), 3u);
    EXPECT_EQ(pieces_[0], (Piece{std::string(LineSplitter::kMaxPiece, 'y'), false}));
    EXPECT_EQ(pieces_[2], (Piece{"yyyyy", true}));
  }
}

TEST_F(LineSplitterTest, NoByteIsChangedWhateverTheCuts) {
  std::mt19937 random(7);
  std::string bytes;
  for (int i = 0; i < 300'000; ++i)
    bytes.push_back(static_cast<char>(random() % 64));  // has '\n', '\0'
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const size_t size = std::min<size_t>(rest.size(), random() % 5000);
    feed(rest.substr(0, size));
    if (random() % 10 == 0) flush();
    rest.remove_prefix(size);
  }
  flush();
  std::string joined;
  for (const Piece& piece : pieces_) joined += piece.text + (piece.has_newline ? "\n" : "");
  EXPECT_EQ(joined, bytes);
}

}  // namespace
}  // namespace lockstep::launch
