#pragma once

#include <cstdint>
#include <sstream>
#include <string>

namespace lockstep::base {

/// Prints the broken invariant with its place and values, and aborts. In release builds too: a
/// wrong gradient is worse than a dead replica, and the launcher handles dead replicas.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);

template <typename Left, typename Right>
std::string both_values(const Left& left, const Right& right) {
  std::ostringstream text;
  text << left << " against " << right;
  return text.str();
}

}  // namespace lockstep::base

// LOCKSTEP_CHECK(condition, left, right): an invariant of ours, with the two values that explain
// it.
#define LOCKSTEP_CHECK(condition, left, right)                                        \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      ::lockstep::base::check_failed(__FILE__, __LINE__, #condition,                  \
                                     ::lockstep::base::both_values((left), (right))); \
    }                                                                                 \
  } while (false)
