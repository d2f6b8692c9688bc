#include "src/ledger/host.h"

namespace lockstep::ledger {

const char* point_name(Point point) {
  static constexpr const char* kNames[kPointCount] = {
      "claim",          "leaf-done",      "slot-written",   "live",
      "child-freed",    "bucket-claimed", "bucket-reduced", "commit-claimed",
      "record-written", "committed",      "applying",       "applied",
      "join-asked",     "donor-copying",  "joiner-loaded",  "admitted"};
  return kNames[static_cast<int>(point)];
}

}  // namespace lockstep::ledger
