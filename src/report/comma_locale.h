#pragma once

#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <locale>
#include <string>

#include "src/base/temp_folder.h"

namespace lockstep::report {

/// For tests: as long as it lives, C and C++ write 1,5 for one and a half. The C locale is made
/// with localedef where the system has no such locale; `c_locale_uses_comma()` tells whether that
/// worked. The C++ locale always does.
class CommaLocale {
 public:
  CommaLocale() : before_(std::setlocale(LC_ALL, nullptr)), cxx_before_(std::locale()) {
    if (!std::setlocale(LC_ALL, "de_DE.UTF-8") && !std::setlocale(LC_ALL, "de_DE.utf8")) make_one();
    // Not named, so it leaves the C locale alone.
    std::locale::global(std::locale(std::locale::classic(), new Comma));
  }
  ~CommaLocale() {
    std::locale::global(cxx_before_);
    std::setlocale(LC_ALL, before_.c_str());
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  static bool c_locale_uses_comma() {
    char text[16];
    std::snprintf(text, sizeof text, "%.1f", 1.5);
    return std::string(text) == "1,5";
  }

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  void make_one() {
    std::string program = "localedef";
    std::string input = "de_DE";
    std::string map = "UTF-8";
    std::string no_warnings = "--no-warnings=ascii";
    std::string output = folder_.path("de_DE.utf8");
    std::string i = "-i";
    std::string f = "-f";
    char* arguments[] = {program.data(), i.data(),           input.data(),  f.data(),
                         map.data(),     no_warnings.data(), output.data(), nullptr};
    pid_t child = 0;
    if (::posix_spawnp(&child, "localedef", nullptr, nullptr, arguments, environ) != 0) return;
    int status = 0;
    ::waitpid(child, &status, 0);
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    std::setlocale(LC_ALL, "de_DE.utf8");
    ::unsetenv("LOCPATH");
  }

  base::TempFolder folder_;
  std::string before_;
  std::locale cxx_before_;
};

}  // namespace lockstep::report
