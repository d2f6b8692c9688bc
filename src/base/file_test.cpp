#include "src/base/file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "src/base/temp_folder.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Call>
std::string message_of(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::vector<std::string> names(const FolderListing& listing) {
  std::vector<std::string> relative;
  for (const FolderFile& file : listing.files) relative.push_back(file.relative);
  return relative;
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Bound to a short relative name, since a socket's path may have 107 bytes only.
void make_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
}

TEST(QuotePath, KeepsUtf8AndEscapesTheRest) {
  EXPECT_EQ(quote_path("/a b/ü💡"), "'/a b/ü💡'");
  EXPECT_EQ(quote_path("a\nb\x1b[31m\x7f"), "'a\\x0ab\\x1b[31m\\x7f'");
  EXPECT_EQ(quote_path("\xff\xc3(\xe2\x82"), "'\\xff\\xc3(\\xe2\\x82'");
  EXPECT_EQ(quote_path("\xc0\xaf\xed\xa0\x80"), "'\\xc0\\xaf\\xed\\xa0\\x80'");
  EXPECT_EQ(quote_path("\xc2\x9b"), "'\\xc2\\x9b'");  // a control of its own: CSI
}

TEST(File, ReadsAndMapsTheSameBytes) {
  const TempFolder folder;
  const std::string bytes("\xef\xbb\xbf a\r\n\0z", 9);
  const std::string path = folder.write("sp ace/\xff\xfe.txt", bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(text_of(MappedFile(path)), bytes);
}

TEST(File, EmptyFileIsEmptyText) {
  const TempFolder folder;
  const std::string path = folder.write("empty", "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST(File, MovedMapOwnsTheBytes) {
  const TempFolder folder;
  MappedFile first(folder.write("a", "abc"));
  MappedFile second(std::move(first));
  EXPECT_TRUE(first.bytes().empty());
  MappedFile third(folder.write("b", "xyz"));
  third = std::move(second);
  EXPECT_EQ(text_of(third), "abc");
}

TEST(File, ReadsFilesThatGiveNoSize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Cpus_allowed_list"));
}

TEST(File, ReadsLongFilesAndHoldsTheLimit) {
  const TempFolder folder;
  const std::string bytes(100000, 'x');
  const std::string path = folder.write("long", bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(read_file(path, 100000), bytes);
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { read_file(path, 99999); }),
              AllOf(HasSubstr("long"), HasSubstr("99999")));
}

TEST(File, MissingFilesAreNamed) {
  const TempFolder folder;
  EXPECT_FALSE(file_status(folder.path("none")).has_value());
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { read_file(folder.path("none")); }),
              AllOf(HasSubstr("none"), HasSubstr("no such file")));
  const std::string file = folder.write("file", "x");
  EXPECT_FALSE(file_status(file + "/below").has_value());
  EXPECT_THAT(message_of(ErrorCode::kInput, [] { read_file(""); }), HasSubstr("empty"));
  const std::string nul(std::string("a\0b", 3));
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { read_file(nul); }), HasSubstr("NUL"));
}

TEST(File, OtherKindsAreRefusedWithoutBlocking) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0666), 0);
  make_socket(folder.path("socket"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder.path("fifo"), "a named pipe (FIFO)"},
      {folder.path("socket"), "a socket"},
      {folder.path(), "a folder"},
      {"/dev/null", "a character device"}};
  for (const auto& one : cases) {
    const std::string& path = one.first;  // clang 14 captures no structured binding
    const std::string& kind = one.second;
    EXPECT_THAT(message_of(ErrorCode::kInput, [&] { read_file(path); }), HasSubstr(kind));
    EXPECT_THAT(message_of(ErrorCode::kInput, [&] { MappedFile{path}; }), HasSubstr(kind));
    EXPECT_THAT(message_of(ErrorCode::kInput, [&] { write_file_atomically(path, "x"); }),
                HasSubstr(kind));
    EXPECT_THAT(message_of(ErrorCode::kInput, [&] { AppendFile(path, AppendFile::Start::kEmpty); }),
                HasSubstr(kind));
  }
}

TEST(File, UnreadableFilesAreNamedWithTheReason) {
  const TempFolder folder;
  const std::string path = folder.write("secret", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const WithoutRoot nobody;
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { read_file(path); }),
              AllOf(HasSubstr("secret"), HasSubstr("Permission denied")));
}

TEST(ListFolder, OrderIsThatOfTheBytesOfTheWholePath) {
  const TempFolder folder;
  for (const char* name : {"b", "a/x", "a-b", "a.txt", "B", "\xc3\xa4", "a/x.d/y", ".hidden/z"}) {
    folder.write(name, name);
  }
  EXPECT_THAT(names(list_folder(folder.path())),
              ElementsAre(".hidden/z", "B", "a-b", "a.txt", "a/x", "a/x.d/y", "b", "\xc3\xa4"));
}

TEST(ListFolder, PathsArePrefixedOnce) {
  const TempFolder folder;
  folder.write("in/a", "1");
  EXPECT_EQ(list_folder(folder.path("in/")).files.at(0).path, folder.path("in/a"));
  EXPECT_EQ(list_folder(folder.path("in")).files.at(0).path, folder.path("in/a"));
  EXPECT_EQ(list_folder(folder.path("in")).files.at(0).status.size_bytes, 1u);
}

TEST(ListFolder, LinksToFilesCountAndLinksToFoldersDoNot) {
  const TempFolder folder;
  const TempFolder other;
  folder.write("data/real", "12345");
  other.write("elsewhere", "1");
  const auto link = [&](const std::string& to, const std::string& name) {
    std::filesystem::create_symlink(to, folder.path("data/" + name));
  };
  link("real", "to-file");
  link(".", "to-itself");
  link(other.path(), "to-folder");
  link("nowhere", "dangling");
  link("/dev/null", "to-device");
  ASSERT_EQ(::mkfifo(folder.path("data/fifo").c_str(), 0666), 0);
  const FolderListing listing = list_folder(folder.path("data"));
  EXPECT_THAT(names(listing), ElementsAre("real", "to-file"));
  EXPECT_EQ(listing.files[0].status.inode, listing.files[1].status.inode);
  EXPECT_EQ(listing.files[1].status.size_bytes, 5u);
  EXPECT_EQ(listing.folder_links, 2u);
  EXPECT_EQ(listing.dangling_links, 1u);
  EXPECT_EQ(listing.special_files, 2u);
}

TEST(ListFolder, DeepTreesAreListed) {
  const TempFolder folder;
  std::string relative;
  for (int i = 0; i < 200; ++i) relative += "d/";
  folder.write(relative + "leaf", "x");
  EXPECT_THAT(names(list_folder(folder.path())), ElementsAre(relative + "leaf"));
}

TEST(ListFolder, MissingAndUnreadableFoldersAreRefused) {
  const TempFolder folder;
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { list_folder(folder.path("none")); }),
              HasSubstr("no such folder"));
  EXPECT_THAT(message_of(ErrorCode::kInput, [&] { list_folder(folder.write("file", "")); }),
              HasSubstr("a regular file"));
  folder.write("closed/a", "x");
  ASSERT_EQ(::chmod(folder.path("closed").c_str(), 0), 0);
  {
    const WithoutRoot nobody;
    EXPECT_THAT(message_of(ErrorCode::kInput, [&] { list_folder(folder.path()); }),
                AllOf(HasSubstr("closed"), HasSubstr("Permission denied")));
  }
  ::chmod(folder.path("closed").c_str(), 0755);
}

TEST(WriteFileAtomically, ReplacesAndLeavesNothingBehind) {
  const TempFolder folder;
  const std::string path = folder.path("result.json");
  write_file_atomically(path, "old");
  const std::string bytes("\0new\n", 5);
  write_file_atomically(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_THAT(names(list_folder(folder.path())), ElementsAre("result.json"));
}

TEST(WriteFileAtomically, TakesTheLongestName) {
  const TempFolder folder;
  const std::string path = folder.path(std::string(255, 'n'));
  write_file_atomically(path, "x");
  EXPECT_EQ(read_file(path), "x");
}

TEST(WriteFileAtomically, FailureKeepsTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.path("kept");
  write_file_atomically(path, "old");
  // A file size limit stands for a full disk: write() fails half-way.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of(
      ErrorCode::kEnvironment, [&] { write_file_atomically(path, std::string(5000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("kept"), HasSubstr("File too large")));
  EXPECT_EQ(read_file(path), "old");
  EXPECT_THAT(names(list_folder(folder.path())), ElementsAre("kept"));
}

TEST(WriteFileAtomically, MissingFolderIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(message_of(ErrorCode::kEnvironment,
                         [&] { write_file_atomically(folder.path("no/where"), "x"); }),
              AllOf(HasSubstr("no/where"), HasSubstr("No such file")));
}

TEST(WriteFileAtomically, ThreadsDoNotDisturbEachOther) {
  const TempFolder folder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 20; ++j) {
        write_file_atomically(folder.path("same"), std::string(10000, static_cast<char>('a' + i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string bytes = read_file(folder.path("same"));
  EXPECT_EQ(bytes, std::string(10000, bytes.at(0)));
}

TEST(AppendFile, AddsLinesAndKnowsTheSize) {
  const TempFolder folder;
  const std::string path = folder.path("log");
  AppendFile file(path, AppendFile::Start::kEmpty);
  file.append_line("one");
  file.append_line("");
  file.sync();
  EXPECT_EQ(read_file(path), "one\n\n");
  EXPECT_EQ(file.size_bytes(), 5u);
  file.truncate(4);
  file.append_line("two");
  EXPECT_EQ(read_file(path), "one\ntwo\n");
}

TEST(AppendFile, KeepsOrDropsWhatWasThere) {
  const TempFolder folder;
  const std::string path = folder.write("log", "one\n");
  AppendFile(path, AppendFile::Start::kKeep).append_line("two");
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  AppendFile(path, AppendFile::Start::kEmpty).append_line("three");
  EXPECT_EQ(read_file(path), "three\n");
}

TEST(AppendFile, CutsATornLastLine) {
  const TempFolder folder;
  const std::string torn(10000, 't');  // longer than one block of the search
  for (const std::string start : {"", "one\n", "one\ntwo\n"}) {
    const std::string path = folder.write("log", start + torn);
    AppendFile file(path, AppendFile::Start::kKeep);
    EXPECT_EQ(read_file(path), start);
    file.append_line("next");
    EXPECT_EQ(read_file(path), start + "next\n");
  }
}

TEST(AppendFile, TakesBackALineThatDidNotFit) {
  const TempFolder folder;
  const std::string path = folder.path("log");
  AppendFile file(path, AppendFile::Start::kEmpty);
  file.append_line("whole");
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      message_of(ErrorCode::kEnvironment, [&] { file.append_line(std::string(500, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, HasSubstr("log"));
  EXPECT_EQ(read_file(path), "whole\n");
  file.append_line("again");
  EXPECT_EQ(read_file(path), "whole\nagain\n");
}

TEST(AppendFile, FullDeviceIsNamed) {
  EXPECT_THAT(
      message_of(ErrorCode::kInput, [] { AppendFile("/dev/full", AppendFile::Start::kKeep); }),
      HasSubstr("/dev/full"));
}

TEST(AppendFile, MovesItsDescriptor) {
  const TempFolder folder;
  AppendFile first(folder.path("a"), AppendFile::Start::kEmpty);
  AppendFile second(std::move(first));
  second.append_line("x");
  AppendFile third(folder.path("b"), AppendFile::Start::kEmpty);
  third = std::move(second);
  third.append_line("y");
  EXPECT_EQ(read_file(folder.path("a")), "x\ny\n");
  EXPECT_EQ(third.path(), folder.path("a"));
}

}  // namespace
}  // namespace lockstep::base
