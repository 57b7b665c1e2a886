// SPDX-License-Identifier: Apache-2.0
#include "performer/data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

struct Closer {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

class ByteSource::Parts {
 public:
  explicit Parts(const std::string& path) {
    file_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
    if (file_ == nullptr) throw std::runtime_error(failure("cannot open"));
    refill();
    gzip_ = input_bytes_ >= 2 && input_[0] == 0x1f && input_[1] == 0x8b;
    if (!gzip_) return;
    // 16 asks zlib for the gzip format, 15 is the largest window.
    if (inflateInit2(&stream_, 16 + 15) != Z_OK) throw std::runtime_error("zlib: out of memory");
    stream_ready_ = true;
  }
  ~Parts() {
    if (stream_ready_) inflateEnd(&stream_);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Up to `size` bytes; 0 at the end only.
  size_t read(char* out, size_t size) { return gzip_ ? inflate_some(out, size) : copy(out, size); }

 private:
  static std::string failure(const char* what) {
    return favor::message(what, ": ", std::strerror(errno));
  }

  bool refill() {
    used_ = 0;
    errno = 0;
    input_bytes_ = std::fread(input_.data(), 1, input_.size(), file_.get());
    if (input_bytes_ == 0 && std::ferror(file_.get()))
      throw std::runtime_error(failure("cannot read"));
    return input_bytes_ > 0;
  }

  size_t copy(char* out, size_t size) {
    if (used_ == input_bytes_ && !refill()) return 0;
    const size_t count = std::min(size, input_bytes_ - used_);
    std::memcpy(out, input_.data() + used_, count);
    used_ += count;
    return count;
  }

  // Moves to the next member; false at the end of the file. Zero bytes after a member are padding.
  bool next_member() {
    for (;;) {
      if (used_ == input_bytes_ && !refill()) return false;
      if (input_[used_] != 0) break;
      ++used_;
    }
    if (input_[used_] != 0x1f) throw std::runtime_error("gzip data is followed by other bytes");
    inflateReset(&stream_);
    member_done_ = false;
    return true;
  }

  size_t inflate_some(char* out, size_t size) {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      if (member_done_ && !next_member()) return 0;
      if (used_ == input_bytes_ && !refill()) throw std::runtime_error("gzip data is cut off");
      stream_.next_in = input_.data() + used_;
      stream_.avail_in = static_cast<uInt>(input_bytes_ - used_);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      used_ = input_bytes_ - stream_.avail_in;
      member_done_ = result == Z_STREAM_END;
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        throw std::runtime_error(favor::message(
            "gzip data is damaged: ", stream_.msg != nullptr ? stream_.msg : "unknown error"));
      }
    }
    return size - stream_.avail_out;
  }

  std::unique_ptr<std::FILE, Closer> file_;
  std::array<unsigned char, kBufferBytes> input_{};
  size_t input_bytes_ = 0;
  size_t used_ = 0;
  bool gzip_ = false;
  bool member_done_ = false;
  bool stream_ready_ = false;
  z_stream stream_{};
};

ByteSource::ByteSource(const std::string& path) : parts_(std::make_unique<Parts>(path)) {}
ByteSource::~ByteSource() = default;

size_t ByteSource::read(char* out, size_t size) {
  return parts_->read(out, size);
}

std::string read_bytes(const std::string& path) {
  std::string bytes;
  try {
    ByteSource source(path);
    std::string buffer(kBufferBytes, '\0');
    for (size_t count; (count = source.read(buffer.data(), buffer.size())) > 0;) {
      bytes.append(buffer, 0, count);
    }
  } catch (const std::runtime_error& error) {
    const std::string name = path == "-" ? "standard input" : path;
    throw std::runtime_error(favor::message(name, ": byte ", bytes.size(), ": ", error.what()));
  }
  return bytes;
}

}  // namespace performer
