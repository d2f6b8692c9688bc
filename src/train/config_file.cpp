#include "src/train/config_file.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/quote_path.h"

namespace lockstep::train {
namespace {

using base::quote_path;

bool is_key_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : text_(text), path_(path) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // a byte order mark
  }

  std::vector<ConfigEntry> parse() {
    std::vector<ConfigEntry> entries;
    for (skip_blank_lines(); !at_end(); skip_blank_lines()) {
      ConfigEntry entry = parse_entry();
      const auto is_same = [&](const ConfigEntry& other) { return other.key == entry.key; };
      if (std::any_of(entries.begin(), entries.end(), is_same)) {
        refuse(fmt::format("the key {} comes twice", quote_path(entry.key)), entry.line);
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem, uint64_t line) const {
    throw Error(ErrorCode::kInput, fmt::format("cannot use {} (--config): line {}: {}.",
                                               quote_path(path_), line, problem));
  }
  [[noreturn]] void refuse(const std::string& problem) const { refuse(problem, line_); }

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (take(' ') || take('\t')) {
    }
  }
  void skip_comment() {
    if (peek() != '#') return;
    at_ = std::min(text_.find('\n', at_), text_.size());
  }
  bool take_line_end() {
    if (text_.substr(at_).starts_with("\r\n")) ++at_;
    if (!take('\n')) return false;
    ++line_;
    return true;
  }
  void skip_blank_lines() {
    do {
      skip_blanks();
      skip_comment();
    } while (take_line_end());
  }

  ConfigEntry parse_entry() {
    ConfigEntry entry;
    entry.line = line_;
    if (peek() == '[') refuse("options stand without sections, as lr = 3e-4");
    if (peek() == '"' || peek() == '\'') {
      entry.key = parse_string();
    } else {
      while (!at_end() && is_key_letter(peek())) entry.key += text_[at_++];
      if (entry.key.empty()) refuse("expected NAME = VALUE, as lr = 3e-4");
    }
    skip_blanks();
    if (peek() == '.') refuse("options stand without sections, as lr = 3e-4, and have no dots");
    if (!take('=')) refuse(fmt::format("expected = after {}", quote_path(entry.key)));
    skip_blanks();
    if (take('[')) {
      parse_array(entry);
    } else {
      entry.values.push_back(parse_value());
    }
    skip_blanks();
    skip_comment();
    if (!at_end() && !take_line_end()) {
      refuse(fmt::format("something follows the value of {}", quote_path(entry.key)));
    }
    return entry;
  }

  void parse_array(ConfigEntry& entry) {
    for (skip_blank_lines(); !take(']'); skip_blank_lines()) {
      if (at_end()) refuse(fmt::format("the array of {} has no end", quote_path(entry.key)));
      if (peek() == '[') refuse("no option takes an array of arrays");
      entry.values.push_back(parse_value());
      skip_blank_lines();
      if (at_end()) continue;
      if (!take(',') && peek() != ']') {
        refuse(fmt::format("expected a comma or ] in the array of {}", quote_path(entry.key)));
      }
    }
  }

  std::string parse_value() {
    if (peek() == '"' || peek() == '\'') return parse_string();
    const size_t begin = at_;
    while (!at_end() && std::string_view(" \t\r\n,]#").find(peek()) == std::string_view::npos)
      ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    if (word.empty()) refuse("a value is missing");
    const char first = word.front();
    const bool is_number = (first >= '0' && first <= '9') || first == '+' || first == '-';
    if (!is_number && word != "true" && word != "false" && word != "inf" && word != "nan") {
      refuse(
          fmt::format("{}: expected a number, true, false, or a text in quotes", quote_path(word)));
    }
    std::erase(word, '_');  // 1_000
    return first == '+' ? word.substr(1) : word;
  }

  std::string parse_string() {
    const char quote = text_[at_++];
    std::string value;
    while (!at_end() && peek() != quote) {
      const char c = text_[at_++];
      if (c == '\n' || c == '\r')
        refuse("a text must end in its line, with the quote it began with");
      if (c == '\\' && quote == '"') {
        value += parse_escape();
      } else {
        value += c;
      }
    }
    if (!take(quote)) refuse("a text must end in its line, with the quote it began with");
    if (value.empty() && peek() == quote) refuse("texts of several lines are not read here");
    return value;
  }

  std::string parse_escape() {
    const char letter = at_end() ? '\0' : text_[at_++];
    constexpr std::string_view kLetters = "btnfr\"\\";
    constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    const size_t found = kLetters.find(letter);
    if (found != std::string_view::npos) return {kMeanings[found]};
    if (letter == 'u') return parse_code_point(4);
    if (letter == 'U') return parse_code_point(8);
    refuse(
        "a backslash in a text in double quotes stands before one of b t n f r u U \" \\; texts in "
        "single quotes are taken as they are");
  }

  std::string parse_code_point(size_t digits) {
    const std::string_view text = text_.substr(at_, digits);
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (text.size() != digits || error != std::errc() || end != text.data() + digits ||
        code > 0x10FFFF || is_surrogate) {
      refuse(fmt::format("expected {} hexadecimal digits of a character", digits));
    }
    at_ += digits;
    const auto tail = [&](uint32_t shift) {
      return static_cast<char>(0x80u | ((code >> shift) & 0x3Fu));
    };
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0u | (code >> 6)), tail(0)};
    if (code < 0x10000) return {static_cast<char>(0xE0u | (code >> 12)), tail(6), tail(0)};
    return {static_cast<char>(0xF0u | (code >> 18)), tail(12), tail(6), tail(0)};
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  uint64_t line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path) {
  return Parser(text, path).parse();
}

}  // namespace lockstep::train
