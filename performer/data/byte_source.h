// SPDX-License-Identifier: Apache-2.0
// Bytes of a file, gzipped or not: several members and padding between them are understood.
#ifndef PERFORMER_DATA_BYTE_SOURCE_H_
#define PERFORMER_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <memory>
#include <string>

namespace performer {

/// Errors are std::runtime_error without a place ("gzip data is cut off"): the caller knows more.
class ByteSource {
 public:
  /// `-` is standard input.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Up to `size` bytes; 0 at the end only.
  size_t read(char* out, size_t size);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

/// The whole content. Throws std::runtime_error `file: byte N: ...`.
std::string read_bytes(const std::string& path);

}  // namespace performer

#endif  // PERFORMER_DATA_BYTE_SOURCE_H_
