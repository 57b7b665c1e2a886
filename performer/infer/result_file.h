// SPDX-License-Identifier: Apache-2.0
// A file of raw bytes whose parts are written in any order and read as one. No torch here.
#ifndef PERFORMER_INFER_RESULT_FILE_H_
#define PERFORMER_INFER_RESULT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace performer {

/// All failures are std::runtime_error naming the file.
class ResultFile {
 public:
  /// Opens a file of `bytes` bytes. With `create` it starts as zeros (and takes no room on disk
  /// until written); else it must exist with this size.
  ResultFile(const std::string& path, int64_t bytes, bool create);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(int64_t offset, const void* data, size_t bytes);
  /// Returns when what was written would survive a power cut.
  void sync();
  /// The whole content, valid as long as this object; null for an empty file.
  const char* map();
  int64_t size() const { return bytes_; }

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int64_t bytes_;
  int descriptor_ = -1;
  char* mapped_ = nullptr;
};

}  // namespace performer

#endif  // PERFORMER_INFER_RESULT_FILE_H_
