#include "src/train/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/file.h"
#include "src/base/system.h"

namespace lockstep::train {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;
constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's way to say so

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot read the gzip file {}: {}", base::quote_path(path), problem));
}

// Unpacks one file; grows with what was really found, whatever a header claims.
class Unpacker {
 public:
  Unpacker(const std::string& path, std::span<const uint8_t> packed, uint64_t limit_bytes)
      : path_(path), packed_(packed), limit_bytes_(limit_bytes), block_(kBlockBytes) {
    const int status = ::inflateInit2(&stream_, kGzipOnly);
    LOCKSTEP_CHECK(status == Z_OK, status, Z_OK);
  }
  ~Unpacker() { ::inflateEnd(&stream_); }
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  std::string run() {
    while (at_ < packed_.size()) {
      unpack_member();
      ::inflateReset(&stream_);
    }
    return std::move(bytes_);
  }

 private:
  void unpack_member() {
    const size_t start = at_;
    int status = Z_OK;
    while (status != Z_STREAM_END) {
      const size_t available = std::min(packed_.size() - at_, kBlockBytes);
      stream_.next_in = const_cast<Bytef*>(packed_.data() + at_);
      stream_.avail_in = static_cast<uInt>(available);
      stream_.next_out = block_.data();
      stream_.avail_out = static_cast<uInt>(block_.size());
      status = ::inflate(&stream_, Z_NO_FLUSH);
      const size_t taken = available - stream_.avail_in;
      const size_t made = block_.size() - stream_.avail_out;
      at_ += taken;
      keep(made);
      if (status == Z_STREAM_END || (status == Z_OK && taken + made > 0)) continue;
      if (status == Z_OK || status == Z_BUF_ERROR) {
        refuse(path_, fmt::format("it ends too early, after {} bytes that unpack to {}. Was it "
                                  "copied or downloaded as a whole?",
                                  packed_.size(), bytes_.size()));
      }
      if (start > 0 && at_ - start < 10) {
        refuse(path_, fmt::format("something else than gzip follows at byte {} of {}.", start,
                                  packed_.size()));
      }
      refuse(path_,
             fmt::format("damaged near byte {} of {} ({}). Get it again.", at_, packed_.size(),
                         stream_.msg != nullptr ? stream_.msg : "no reason given"));
    }
  }

  void keep(size_t count) {
    if (count > limit_bytes_ - bytes_.size()) {
      refuse(path_, fmt::format("its {} bytes unpack to more than {}, which is the most that is "
                                "read into memory.",
                                packed_.size(), base::format_bytes(limit_bytes_)));
    }
    bytes_.append(reinterpret_cast<const char*>(block_.data()), count);
  }

  const std::string& path_;
  std::span<const uint8_t> packed_;
  uint64_t limit_bytes_;
  std::vector<Bytef> block_;
  z_stream stream_{};
  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace

std::string read_unpacked(const std::string& path, uint64_t limit_bytes) {
  const base::MappedFile file(path);
  const std::span<const uint8_t> bytes = file.bytes();
  if (bytes.size() < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b) {
    return base::read_file(path, limit_bytes);
  }
  return Unpacker(path, bytes, limit_bytes).run();
}

}  // namespace lockstep::train
