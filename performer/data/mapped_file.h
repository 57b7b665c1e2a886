// SPDX-License-Identifier: Apache-2.0
// Whole files in the address space, read only: the system reads what is touched, when it is.
#ifndef PERFORMER_DATA_MAPPED_FILE_H_
#define PERFORMER_DATA_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace performer {

/// The bytes of one file for the life of this object. All failures are std::runtime_error naming
/// the file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  /// Takes an open descriptor, which stays the caller's; `path` names it in messages.
  MappedFile(int descriptor, const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  void map(int descriptor);

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

/// The first bytes of a file, fewer where it is shorter; empty for `-` and what cannot be read.
std::string first_bytes(const std::string& path, size_t count);

}  // namespace performer

#endif  // PERFORMER_DATA_MAPPED_FILE_H_
