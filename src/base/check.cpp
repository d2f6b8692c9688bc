#include "src/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep::base {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "lockstep: broken invariant at %s:%d: %s (%s). This is a bug in lockstep.\n",
               file, line, condition, values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace lockstep::base
