// Runs a fuzz target without clang's libFuzzer: NAME_fuzz [--seconds S] [--seed N], or NAME_fuzz
// FILE to run one input again. Built with the address and undefined-behaviour sanitizers.

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>

#include "src/base/number.h"
#include "tests/fuzz/fuzz_target.h"

// A failed check aborts: that shall be reported like any other finding. Memory is bounded. Visible,
// since GCC's sanitizer is a shared library and would pass over a hidden function without a word.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:hard_rss_limit_mb=4096:detect_leaks=1";
}

namespace lockstep::fuzz {
namespace {

constexpr size_t kMostBytes = size_t{1} << 16;
constexpr time_t kMostSeconds = 5;  // of CPU time, for one input, under the sanitizers
std::string current;                // the input that runs now

// When the process is about to die: no memory may be taken.
void keep_input() {
  char path[64];
  std::snprintf(path, sizeof path, "%s-input", program_invocation_short_name);
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return;
  const ssize_t written = ::write(fd, current.data(), current.size());
  ::close(fd);
  std::fprintf(stderr, "the input of %zu bytes is in %s (%zd written): run this program with it\n",
               current.size(), path, written);
}

// A signal, since an input that is read forever never comes back to be timed.
void give_up(int /*signal*/) {
  std::fprintf(stderr, "one input took more than %lld s\n", static_cast<long long>(kMostSeconds));
  keep_input();
  ::_exit(1);
}

void limit_cpu_seconds(time_t seconds) {
  itimerval limit{};
  limit.it_value.tv_sec = seconds;
  if (::setitimer(ITIMER_PROF, &limit, nullptr) != 0) std::abort();
}

void run_current() {
  // In memory of exactly its size: the sanitizer does not see what is read behind it otherwise.
  const auto bytes = std::make_unique_for_overwrite<uint8_t[]>(current.size());
  std::copy(current.begin(), current.end(), bytes.get());
  limit_cpu_seconds(kMostSeconds);
  LLVMFuzzerTestOneInput(bytes.get(), current.size());
  limit_cpu_seconds(0);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : generator_(seed), pool_(seeds()) {}

  void next(std::string& input) {
    input = pool_[below(pool_.size())];
    const size_t count = 1 + below(6);
    for (size_t i = 0; i < count; ++i) mutate(input);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    // A new start now and then, so that changes add up.
    if (below(64) == 0) (pool_.size() < 256 ? pool_.emplace_back() : pool_[below(256)]) = input;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : generator_() % limit; }

  void mutate(std::string& input) {
    const size_t at = below(input.size() + 1);
    const size_t length = std::min(input.size() - at, below(2) == 0 ? below(9) : below(600));
    switch (below(9)) {
      case 0: flip_a_bit(input); break;
      case 1: input.resize(at); break;
      case 2: input.erase(at, length); break;
      case 3: input.insert(at, input.substr(at, length)); break;
      case 4: input.insert(at, piece_of_another()); break;
      case 5: input.insert(at, below(80), static_cast<char>(below(256))); break;
      case 6: put_number(input, at); break;
      case 7: input.insert(at, word()); break;
      default:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
    }
  }

  void flip_a_bit(std::string& input) {
    if (input.empty()) return;
    char& byte = input[below(input.size())];
    byte = static_cast<char>(byte ^ (1 << below(8)));
  }

  std::string piece_of_another() {
    const std::string& other = pool_[below(pool_.size())];
    return other.substr(below(other.size() + 1), below(200));
  }

  // Where sizes and counts may stand: numbers at the ends of what they can be.
  void put_number(std::string& input, size_t at) {
    constexpr std::array<uint64_t, 10> kNumbers = {
        0,           1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff,
        ~uint64_t{0}};
    const uint64_t number = kNumbers[below(kNumbers.size())] - below(2);
    const size_t width = size_t{1} << below(4);
    std::string bytes;
    for (size_t i = 0; i < width; ++i) bytes += static_cast<char>(number >> (8 * i));
    if (below(2) == 0) std::reverse(bytes.begin(), bytes.end());
    input.replace(at, std::min(width, input.size() - at), bytes);
  }

  const char* word() {
    constexpr std::array<const char*, 16> kWords = {
        "\"",       "\"\"", ",",    "\r",      "\r\n",
        "\n",       "nan",  "-inf", "1e999",   "\xef\xbb\xbf",
        "[",        "{",    "=",    "\\u0000", "18446744073709551616",
        "0x1p-1074"};
    return kWords[below(kWords.size())];
  }

  std::mt19937_64 generator_;
  std::vector<std::string> pool_;
};

int run_for(double seconds, uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  for (const std::string& valid : seeds()) {
    current = valid;
    run_current();
  }
  Mutator mutator(seed);
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  uint64_t runs = 0;
  for (; passed() < seconds; ++runs) {
    mutator.next(current);
    run_current();
  }
  std::printf("%llu inputs, %.0f a second, seed %llu: nothing found\n",
              static_cast<unsigned long long>(runs), static_cast<double>(runs) / passed(),
              static_cast<unsigned long long>(seed));
  return 0;
}

int run_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  current.assign(std::istreambuf_iterator<char>(in), {});
  if (!in) {
    std::fprintf(stderr, "cannot read %s\n", path);
    return 2;
  }
  run_current();
  return 0;
}

int usage() {
  std::fprintf(stderr, "usage: NAME_fuzz [--seconds S] [--seed N] | NAME_fuzz FILE\n");
  return 2;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 1 && !words[0].starts_with("--")) return run_file(words[0].c_str());
  double seconds = 10;
  uint64_t seed = 1;
  for (size_t i = 0; i < words.size(); i += 2) {
    const auto number = i + 1 < words.size() ? base::number_from<uint64_t>(words[i + 1])
                                             : std::optional<uint64_t>();
    if (!number) return usage();
    if (words[i] == "--seconds") {
      seconds = static_cast<double>(*number);
    } else if (words[i] == "--seed") {
      seed = *number;
    } else {
      return usage();
    }
  }
  return run_for(seconds, seed);
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  __sanitizer_set_death_callback(&lockstep::fuzz::keep_input);
  std::signal(SIGPROF, &lockstep::fuzz::give_up);
  return lockstep::fuzz::run(std::vector<std::string>(argv + 1, argv + argc));
}
