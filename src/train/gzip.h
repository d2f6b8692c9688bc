#pragma once

#include <cstdint>
#include <string>

namespace lockstep::train {

/// The bytes of a regular file; of a gzip file (it starts with 1f 8b) what it unpacks to, all its
/// members joined. Throws Error(kInput), naming path and numbers, when it cannot be read, is cut,
/// has a wrong checksum or something behind its end, or has more than `limit_bytes` unpacked.
std::string read_unpacked(const std::string& path, uint64_t limit_bytes = uint64_t{1} << 35);

}  // namespace lockstep::train
