#include "src/train/token_data.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"

namespace lockstep::train {
namespace {

using base::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Token>
std::string bytes_of(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

template <typename Token>
std::string llm_c(uint32_t magic, uint32_t version, const std::vector<Token>& tokens) {
  std::vector<uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<uint32_t>(tokens.size());
  return bytes_of(header) + bytes_of(tokens);
}

TokenDataOptions options_for(std::vector<std::string> paths, uint32_t context,
                             uint32_t vocabulary = 256) {
  TokenDataOptions options;
  options.paths = std::move(paths);
  options.context = context;
  options.vocabulary = vocabulary;
  return options;
}

TokenData load(std::vector<std::string> paths, uint32_t context, uint32_t vocabulary = 256) {
  return load_token_data(options_for(std::move(paths), context, vocabulary)).training;
}

std::string refusal(const TokenDataOptions& options, ErrorCode code = ErrorCode::kInput) {
  try {
    load_token_data(options);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

std::string refusal(std::vector<std::string> paths, uint32_t context = 2,
                    uint32_t vocabulary = 256) {
  return refusal(options_for(std::move(paths), context, vocabulary));
}

struct Sequence {
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
};

Sequence sequence(const TokenData& data, uint64_t index) {
  Sequence result{std::vector<int64_t>(data.context()), std::vector<int64_t>(data.context())};
  data.copy_sequence(index, result.inputs.data(), result.targets.data());
  return result;
}

std::string all_bytes(const TokenData& data) {
  std::string bytes;
  data.walk_bytes(
      [&](std::span<const uint8_t> piece) { bytes.append(piece.begin(), piece.end()); });
  return bytes;
}

TEST(TokenData, AHundredTokensAreTwelveSequencesOfEight) {
  const TempFolder folder;
  std::string text(100, '\0');
  std::iota(text.begin(), text.end(), '\0');
  const TokenData data = load({folder.write("t.txt", text)}, 8);
  EXPECT_EQ(data.tokens(), 100u);
  EXPECT_EQ(data.sequence_count(), 12u);
  EXPECT_EQ(data.unused_tokens(), 3u);
  EXPECT_EQ(data.vocabulary_needed(), 100u);
  EXPECT_EQ(data.token_bytes(), 1u);
  EXPECT_THAT(sequence(data, 0).inputs, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(sequence(data, 0).targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(sequence(data, 11).inputs, ElementsAre(88, 89, 90, 91, 92, 93, 94, 95));
  EXPECT_THAT(sequence(data, 11).targets, ElementsAre(89, 90, 91, 92, 93, 94, 95, 96));
}

TEST(TokenData, TheCountIsRightAroundEveryEdge) {
  const TempFolder folder;
  for (const size_t tokens : {17u, 18u, 32u, 33u, 34u, 49u}) {
    const TokenData data = load({folder.write("t", std::string(tokens, 'x'))}, 16);
    EXPECT_EQ(data.sequence_count(), (tokens - 1) / 16) << tokens;
  }
}

TEST(TokenData, TextIsReadAsItsBytes) {
  const TempFolder folder;
  const std::string text(
      "\xef\xbb\xbf"
      "a\r\n\0\xf0\x9f\x92\xa1\xff"
      "e\xcc\x81",
      15);
  const TokenData data = load({folder.write("emoji 💡.txt", text)}, 14);
  EXPECT_EQ(all_bytes(data), text);
  const Sequence only = sequence(data, 0);
  for (size_t i = 0; i < 14; ++i) {
    EXPECT_EQ(only.inputs[i], static_cast<uint8_t>(text[i]));
    EXPECT_EQ(only.targets[i], static_cast<uint8_t>(text[i + 1]));
  }
}

TEST(TokenData, FilesAreJoinedInTheOrderGiven) {
  const TempFolder folder;
  const std::string b = folder.write("b", "123");
  const std::string a = folder.write("a", "45");
  const std::string big = folder.write("big", std::string(100000, 'z'));
  EXPECT_EQ(all_bytes(load({b, a}, 1)), "12345");
  EXPECT_EQ(all_bytes(load({a, big, b, a}, 1)), "45" + std::string(100000, 'z') + "12345");
  EXPECT_THAT(sequence(load({b, a}, 4), 0).inputs, ElementsAre('1', '2', '3', '4'));
  EXPECT_THAT(sequence(load({b, a}, 4), 0).targets, ElementsAre('2', '3', '4', '5'));
}

TEST(TokenData, SequencesAcrossFilesEqualThoseOfOneFile) {
  const TempFolder folder;
  std::mt19937 random(9);
  std::string text;
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) {
    // Small files are copied, large ones mapped; both kinds stand beside each other.
    std::string part(i % 7 == 0 ? 20000 + random() % 5000 : 1 + random() % 50, '\0');
    for (char& c : part) c = static_cast<char>(random());
    paths.push_back(folder.write("part" + std::to_string(i), part));
    text += part;
  }
  const TokenData parts = load(paths, 33);
  const TokenData whole = load({folder.write("whole", text)}, 33);
  ASSERT_EQ(parts.sequence_count(), whole.sequence_count());
  for (uint64_t i = 0; i < whole.sequence_count(); ++i) {
    ASSERT_EQ(sequence(parts, i).inputs, sequence(whole, i).inputs) << i;
    ASSERT_EQ(sequence(parts, i).targets, sequence(whole, i).targets) << i;
  }
  EXPECT_EQ(all_bytes(parts), text);
}

TEST(TokenData, AFolderIsReadInByteWiseOrder) {
  const TempFolder folder;
  folder.write("d/b.txt", "5");
  folder.write("d/a/z.txt", "3");
  folder.write("d/a.txt", "2");
  folder.write("d/a/z/deep", "4");
  folder.write("d/B", "1");
  folder.write("d/empty", "");
  EXPECT_EQ(all_bytes(load({folder.path("d")}, 1)), "12345");
  EXPECT_EQ(load({folder.path("d")}, 1).summary(), "5 text files, 5 tokens");
}

TEST(TokenData, InFoldersWhatIsNoTextIsSkippedAndCounted) {
  const TempFolder folder;
  folder.write("d/a", "12");
  folder.write("d/m.bin", "xx");
  folder.write("d/n.npy", "\x93NUMPY");
  folder.write("d/p.png", "\x89PNG\r\n\x1a\n");
  std::filesystem::create_symlink("a", folder.path("d/b"));
  std::filesystem::create_symlink(".", folder.path("d/loop"));
  ASSERT_EQ(::mkfifo(folder.path("d/fifo").c_str(), 0666), 0);
  const TokenData data = load({folder.path("d")}, 1);
  EXPECT_EQ(all_bytes(data), "12");
  EXPECT_EQ(data.summary(),
            "1 text file, 2 tokens; skipped 2 binary files, 1 .bin file, 1 link to a file already "
            "read, 1 link to a folder, 1 special file or dangling link");
}

TEST(TokenData, AFileNamedTwiceIsReadTwice) {
  const TempFolder folder;
  const std::string a = folder.write("a", "12");
  EXPECT_EQ(all_bytes(load({a, a}, 1)), "1212");
}

TEST(TokenData, RawTokensAboveTheSignedRangeStayPositive) {
  const TempFolder folder;
  const std::string path = folder.write("t.bin", bytes_of<uint16_t>({40000, 1, 65535}));
  const TokenData data = load({path}, 2, 65536);
  EXPECT_THAT(sequence(data, 0).inputs, ElementsAre(40000, 1));
  EXPECT_THAT(sequence(data, 0).targets, ElementsAre(1, 65535));
  EXPECT_EQ(data.vocabulary_needed(), 65536u);
  EXPECT_EQ(data.token_bytes(), 2u);
}

TEST(TokenData, LlmCFilesAreReadInBothWidths) {
  const TempFolder folder;
  const std::string narrow = folder.write("n.bin", llm_c<uint16_t>(20240520, 1, {50256, 2, 3}));
  const std::string wide =
      folder.write("w.bin", llm_c<uint32_t>(20240801, 7, {128000, 0xffffffffu, 3}));
  EXPECT_THAT(sequence(load({narrow}, 2, 50257), 0).inputs, ElementsAre(50256, 2));
  const TokenData data = load({wide}, 2, 0);  // whatever is needed
  EXPECT_THAT(sequence(data, 0).inputs, ElementsAre(128000, 4294967295));
  EXPECT_EQ(data.vocabulary_needed(), uint64_t{1} << 32);
  EXPECT_EQ(all_bytes(data), bytes_of<uint32_t>({128000, 0xffffffffu, 3}));
  const std::string raw = folder.write("r.bin", bytes_of<uint16_t>({7, 8}));
  EXPECT_EQ(load({narrow, raw}, 1, 0).tokens(), 5u);
  EXPECT_EQ(load({narrow, raw}, 1, 0).summary(), "2 token files, 5 tokens");
}

TEST(TokenData, KindsCannotBeMixed) {
  const TempFolder folder;
  const std::string text = folder.write("a.txt", "hello");
  const std::string raw = folder.write("r.bin", bytes_of<uint16_t>({7, 8}));
  const std::string wide = folder.write("w.bin", llm_c<uint32_t>(20240801, 7, {1, 2}));
  EXPECT_THAT(refusal({text, raw}), AllOf(HasSubstr("a.txt"), HasSubstr("r.bin")));
  EXPECT_THAT(refusal({raw, folder.path()}), HasSubstr("cannot join"));
  EXPECT_THAT(refusal({raw, wide}, 1, 0),
              AllOf(HasSubstr("2 bytes a token"), HasSubstr("4 bytes a token")));
}

TEST(TokenData, TheLastSequencesAreHeldOut) {
  const TempFolder folder;
  std::string text(100, '\0');
  std::iota(text.begin(), text.end(), '\0');
  TokenDataOptions options = options_for({folder.write("t", text)}, 8);
  options.validation_fraction = 0.25;
  const TokenSplit split = load_token_data(options);
  ASSERT_TRUE(split.validation.has_value());
  EXPECT_EQ(split.training.sequence_count(), 9u);
  EXPECT_EQ(split.training.unused_tokens(), 0u);
  EXPECT_EQ(split.validation->sequence_count(), 3u);
  EXPECT_EQ(split.validation->unused_tokens(), 3u);
  // The last target of the one is below the first target of the other: none is in both.
  EXPECT_EQ(sequence(split.training, 8).targets.back(), 72);
  EXPECT_EQ(sequence(*split.validation, 0).targets.front(), 73);
  EXPECT_EQ(sequence(*split.validation, 2).targets.back(), 96);
  EXPECT_EQ(all_bytes(split.training), text.substr(0, 73));
  EXPECT_EQ(all_bytes(*split.validation), text.substr(72));
}

TEST(TokenData, AtLeastOneSequenceIsHeldOutAndOneIsLeft) {
  const TempFolder folder;
  TokenDataOptions options = options_for({folder.write("t", std::string(33, 'x'))}, 16);
  for (const double fraction : {1e-300, 0.5, 0.9999999999999999}) {
    options.validation_fraction = fraction;
    const TokenSplit split = load_token_data(options);
    EXPECT_EQ(split.training.sequence_count(), 1u);
    EXPECT_EQ(split.validation->sequence_count(), 1u);
  }
  options.paths = {folder.write("t", std::string(32, 'x'))};
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("32 tokens are 1 sequence of context 16")));
}

TEST(TokenData, ValidationFilesAreLoadedApart) {
  const TempFolder folder;
  TokenDataOptions options = options_for({folder.write("t", "abcde")}, 2);
  options.validation_path = folder.write("v", "xyz");
  const TokenSplit split = load_token_data(options);
  EXPECT_EQ(split.training.sequence_count(), 2u);
  EXPECT_EQ(all_bytes(*split.validation), "xyz");
  options.validation_path = folder.write("v", "xy");
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("/v'"), HasSubstr("too short: 2 tokens")));
  options.validation_path = folder.write("v.bin", bytes_of<uint16_t>({1, 2, 3}));
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("v.bin"), HasSubstr("tokens of 2 bytes")));
  options.validation_path = folder.path("none");
  EXPECT_THAT(refusal(options), HasSubstr("none"));
}

TEST(TokenData, OptionsThatContradictAreRefused) {
  const TempFolder folder;
  const std::string path = folder.write("t", "abcde");
  EXPECT_THAT(refusal(options_for({}, 2), ErrorCode::kUsage), HasSubstr("--data"));
  EXPECT_THAT(refusal(options_for({path}, 0), ErrorCode::kUsage), HasSubstr("--context"));
  TokenDataOptions options = options_for({path}, 2);
  for (const double fraction :
       {-0.1, 1.0, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    options.validation_fraction = fraction;
    EXPECT_THAT(refusal(options, ErrorCode::kUsage), HasSubstr("--validation"));
  }
  options.validation_fraction = 0.5;
  options.validation_path = path;
  EXPECT_THAT(refusal(options, ErrorCode::kUsage), HasSubstr("twice"));
}

TEST(TokenData, MissingEmptyAndShortDataAreRefusedWithNumbers) {
  const TempFolder folder;
  EXPECT_THAT(refusal({folder.path("none.txt")}),
              AllOf(HasSubstr("none.txt"), HasSubstr("no such")));
  EXPECT_THAT(refusal({folder.write("e.txt", "")}),
              AllOf(HasSubstr("e.txt"), HasSubstr("0 bytes")));
  EXPECT_THAT(refusal({folder.write("e.bin", "")}), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal({folder.write("z.bin", llm_c<uint16_t>(20240520, 1, {}))}),
              HasSubstr("0 tokens"));
  EXPECT_THAT(refusal({folder.write("s.txt", "abc")}, 64),
              AllOf(HasSubstr("s.txt"), HasSubstr("3 tokens"), HasSubstr("context 64"),
                    HasSubstr("needs 65")));
  for (const size_t tokens : {1u, 15u, 16u}) {
    EXPECT_THAT(refusal({folder.write("s.txt", std::string(tokens, 'a'))}, 16),
                HasSubstr(std::to_string(tokens) + " token"));
  }
  EXPECT_THAT(refusal({folder.path("s.txt")}, std::numeric_limits<uint32_t>::max()),
              HasSubstr("needs 4294967296"));
  EXPECT_THAT(refusal({folder.write("odd.bin", std::string(101, 'x'))}), HasSubstr("101"));
  EXPECT_THAT(refusal({folder.write("newline\n.txt", "")}), HasSubstr("newline\\x0a"));
}

TEST(TokenData, FoldersWithoutTextAreRefused) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("d"));
  EXPECT_THAT(refusal({folder.path("d")}), AllOf(HasSubstr("0 files"), HasSubstr("/d'")));
  folder.write("d/shard.bin", "abcd");
  folder.write("d/model.npz", "PK\x03\x04");
  folder.write("d/empty", "");
  EXPECT_THAT(refusal({folder.path("d")}),
              AllOf(HasSubstr("none of its 3 files"), HasSubstr("1 binary file, 1 .bin file"),
                    HasSubstr("one by one")));
}

TEST(TokenData, OtherKindsAreRefusedByNameWithoutBlocking) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0666), 0);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string socket_path = folder.path("socket");
  ASSERT_LT(socket_path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  EXPECT_THAT(refusal({folder.path("fifo")}), HasSubstr("named pipe"));
  EXPECT_THAT(refusal({folder.path("socket")}), HasSubstr("socket"));
  EXPECT_THAT(refusal({"/dev/null"}), HasSubstr("character device"));
  EXPECT_THAT(refusal({"-"}), HasSubstr("standard input"));
  std::filesystem::create_symlink("fifo", folder.path("link"));
  EXPECT_THAT(refusal({folder.path("link")}), HasSubstr("named pipe"));
}

TEST(TokenData, BinaryFilesNamedAsTextAreRefusedByName) {
  const TempFolder folder;
  EXPECT_THAT(refusal({folder.write("a.npy", "\x93NUMPY\x01 data")}), HasSubstr("NumPy array"));
  EXPECT_THAT(refusal({folder.write("a.npz", "PK\x03\x04 data")}), HasSubstr("zip archive"));
  EXPECT_THAT(refusal({folder.write("a.parquet", "PAR1\x15\x04 data")}), HasSubstr("Parquet"));
  EXPECT_THAT(refusal({folder.write("a.gz", "\x1f\x8b\x08 data")}), HasSubstr("gzip"));
  EXPECT_THAT(refusal({"/proc/self/exe"}), HasSubstr("ELF"));
  EXPECT_EQ(load({folder.write("a.jsonl", "{\"text\": \"x\"}\n")}, 2).tokens(), 14u);
}

TEST(TokenData, UnreadableDataAreRefusedWithTheReason) {
  const TempFolder folder;
  const std::string path = folder.write("d/secret", "abc");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const base::WithoutRoot nobody;
  EXPECT_THAT(refusal({path}), AllOf(HasSubstr("secret"), HasSubstr("Permission denied")));
  EXPECT_THAT(refusal({folder.path("d")}), HasSubstr("secret"));
}

TEST(TokenData, IdsBeyondTheVocabularyAreNamedWithTheirPosition) {
  const TempFolder folder;
  std::vector<uint16_t> tokens(300000, 9);
  tokens[200001] = 299;
  tokens[250000] = 400;
  const std::string good = folder.write("good.bin", bytes_of<uint16_t>({1, 2, 3}));
  const std::string bad = folder.write("bad.bin", bytes_of(tokens));
  EXPECT_THAT(refusal({good, bad}, 2, 256),
              AllOf(HasSubstr("token 200001 of"), HasSubstr("bad.bin"), HasSubstr("id 299"),
                    HasSubstr("256 ids (0 to 255)"), HasSubstr("at least 401")));
  EXPECT_EQ(load({good, bad}, 2, 401).vocabulary_needed(), 401u);
  const std::string text = folder.write("t.txt", "plain \xc3\xbc");
  EXPECT_THAT(refusal({text}, 2, 128), AllOf(HasSubstr("token 6 of"), HasSubstr("id 195")));
}

TEST(TokenData, MutatedTokenFilesNeverCrash) {
  const TempFolder folder;
  std::mt19937 random(21);
  int accepted = 0;
  for (int i = 0; i < 1500; ++i) {
    const bool wide = random() % 2 == 0;
    std::string bytes = wide ? llm_c<uint32_t>(20240801, 7, {1, 2, 3, 4, 5, 6, 7})
                             : llm_c<uint16_t>(20240520, 1, {1, 2, 3, 4, 5, 6, 7});
    for (auto changes = random() % 3; changes > 0; --changes) {
      bytes[random() % 2 == 0 ? random() % 12 : random() % bytes.size()] =
          static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (random() % 8 == 0) bytes += std::string(random() % 9, 'x');
    const std::string path = folder.write("f.bin", bytes);
    try {
      const TokenData data = load({path}, 1 + static_cast<uint32_t>(random() % 8), 0);
      ++accepted;
      for (uint64_t s = 0; s < data.sequence_count(); ++s) {
        for (const int64_t id : sequence(data, s).targets) {
          ASSERT_GE(id, 0);
          ASSERT_LT(static_cast<uint64_t>(id), data.vocabulary_needed());
        }
      }
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 300);
}

TEST(TokenData, SparseFilesOfImpossibleSizeAreRefused) {
  const TempFolder folder;
  const std::string path = folder.write("huge.bin", "");
  // More than the address space; file systems that cannot hold it refuse already here.
  if (::truncate(path.c_str(), int64_t{1} << 62) == 0) {
    EXPECT_THROW(load({path}, 2), Error);
  } else {
    EXPECT_EQ(errno, EFBIG);
  }
}

TEST(TokenDataDeathTest, ASequenceThatDoesNotExistIsABug) {
  const TempFolder folder;
  const TokenData data = load({folder.write("t", "abcde")}, 2);
  int64_t room[2];
  EXPECT_DEATH(data.copy_sequence(2, room, room), "2 against 2");
}

TEST(TokenData, ManyFilesAreLoadedQuickly) {
  const TempFolder folder;
  for (int i = 0; i < 3000; ++i) {
    folder.write("d/" + std::to_string(i % 50) + "/" + std::to_string(i), std::string(2000, 'a'));
  }
  EXPECT_EQ(load({folder.path("d")}, 64).tokens(), 6000000u);
}

}  // namespace
}  // namespace lockstep::train
