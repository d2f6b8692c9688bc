#pragma once

#include <zlib.h>

#include <string>

#include "src/base/check.h"

namespace lockstep::train {

/// For tests: the text as one gzip member.
inline std::string gzip(const std::string& text) {
  z_stream stream{};
  const int begun =
      ::deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  LOCKSTEP_CHECK(begun == Z_OK, begun, Z_OK);
  std::string packed(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int ended = ::deflate(&stream, Z_FINISH);
  LOCKSTEP_CHECK(ended == Z_STREAM_END, ended, Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

}  // namespace lockstep::train
