#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::launch {

/// Reads "all", "none", "0", "0,2-3": whether each rank is in the list [rank]. `option` names where
/// it comes from. Throws Error(kUsage) for what is no list, or names a rank that is not there.
std::vector<bool> parse_ranks(std::string_view option, std::string_view text,
                              uint32_t replica_count);

}  // namespace lockstep::launch
