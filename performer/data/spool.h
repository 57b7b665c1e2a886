// SPDX-License-Identifier: Apache-2.0
// Bytes written once and read back as a whole, in an unnamed file that vanishes with its owner.
#ifndef PERFORMER_DATA_SPOOL_H_
#define PERFORMER_DATA_SPOOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "performer/data/mapped_file.h"

namespace performer {

/// All failures are std::runtime_error naming `path`, beside which the file is made.
class Spool {
 public:
  explicit Spool(const std::string& path);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  /// Pieces become one after another; their ends are kept.
  void add(const void* data, size_t bytes);
  /// Offsets of the pieces: one more than there are.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Ends the writing and maps what was written.
  std::span<const uint8_t> map();

 private:
  void flush();

  std::string path_;
  int descriptor_ = -1;
  std::vector<uint8_t> buffer_;
  std::vector<int64_t> offsets_ = {0};
  std::unique_ptr<MappedFile> mapped_;
};

}  // namespace performer

#endif  // PERFORMER_DATA_SPOOL_H_
