#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::base {

/// "1 microbatch", "2 microbatches".
inline std::string counted(uint64_t count, std::string_view one, std::string_view many) {
  return std::to_string(count).append(" ").append(count == 1 ? one : many);
}

/// "1 row", "2 rows".
inline std::string counted(uint64_t count, std::string_view one) {
  return counted(count, one, std::string(one) + "s");
}

}  // namespace lockstep::base
