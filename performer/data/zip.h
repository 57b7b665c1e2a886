// SPDX-License-Identifier: Apache-2.0
// Members of zip files, as far as arrays of numpy need it: stored or deflated, also beyond 4 GiB.
#ifndef PERFORMER_DATA_ZIP_H_
#define PERFORMER_DATA_ZIP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "performer/data/mapped_file.h"

namespace performer {

struct ZipMember {
  std::string name;
  int64_t method = 0;  ///< 0 stored, 8 deflated
  uint32_t checksum = 0;
  int64_t packed_bytes = 0;
  int64_t bytes = 0;
  int64_t header = 0;  ///< where its own header begins
};

/// The members that the directory at the end of the file lists. Throws std::runtime_error `file:
/// byte N: got, expected`.
std::vector<ZipMember> zip_members(const MappedFile& file);

struct ZipBytes {
  std::span<const uint8_t> bytes;
  std::shared_ptr<const void> owner;  ///< the file, or the memory that holds them
};
/// The bytes of a member, which fit its checksum; those of a stored one stay in the file. Throws
/// std::runtime_error `file: byte N: got, expected`.
ZipBytes zip_bytes(const std::shared_ptr<const MappedFile>& file, const ZipMember& member);

}  // namespace performer

#endif  // PERFORMER_DATA_ZIP_H_
