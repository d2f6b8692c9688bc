#include "src/launch/rank_list.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/number.h"
#include "src/base/quote_path.h"

namespace lockstep::launch {
std::vector<bool> parse_ranks(std::string_view option, std::string_view text,
                              uint32_t replica_count) {
  if (text == "all") return std::vector<bool>(replica_count, true);
  std::vector<bool> ranks(replica_count, false);
  if (text == "none") return ranks;
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} {}: {}", option, base::quote_path(text), problem));
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view range = text.substr(begin, comma - begin);
    const size_t dash = range.find('-');
    const auto first = base::number_from<uint32_t>(range.substr(0, dash));
    const auto last = dash == std::string_view::npos
                          ? first
                          : base::number_from<uint32_t>(range.substr(dash + 1));
    if (!first || !last || *first > *last) {
      refuse("expected all, none, or ranks with commas between them, as in 0 or 0,2-3.");
    }
    if (*last >= replica_count) {
      refuse(replica_count == 1
                 ? fmt::format("there is no rank {}: the only replica has rank 0.", *last)
                 : fmt::format("there is no rank {}: the ranks of {} replicas are 0 to {}.", *last,
                               replica_count, replica_count - 1));
    }
    for (uint32_t rank = *first; rank <= *last; ++rank) ranks[rank] = true;
    begin = comma + 1;
  }
  return ranks;
}

}  // namespace lockstep::launch
