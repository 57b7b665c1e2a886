// SPDX-License-Identifier: Apache-2.0
// Arrays of numpy: .npy files, and .npz, which are zip files of them.
#ifndef PERFORMER_DATA_NPY_H_
#define PERFORMER_DATA_NPY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "performer/data/mapped_file.h"

namespace performer {

/// An array in row-major order. `owner` keeps its bytes: a mapped file, or memory.
struct NpyArray {
  std::string type;  ///< as numpy writes it: |u1, <i8, ...
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
  std::shared_ptr<const void> owner;
  std::string place;  ///< file and place, for messages

  /// Bytes of a number of `type`, 0 for one that is no number.
  int64_t item_bytes() const;
  /// The whole numbers of one of the types |u1, |i1, and i2, u2, i4, u4, i8 in either byte order.
  /// Throws std::runtime_error naming the place for others.
  std::vector<int64_t> whole_numbers() const;
};

/// An array from the bytes of a .npy file of version 1 to 3; `place` names it. Throws
/// std::runtime_error `place: byte N: got, expected`.
NpyArray parse_npy(std::span<const uint8_t> bytes, std::shared_ptr<const void> owner,
                   const std::string& place);

/// The array `name` of a .npz file. One that is stored stays in the file, one that is compressed is
/// held in memory. Throws std::runtime_error naming file and byte, also for a file that lacks it.
NpyArray read_npz(const std::shared_ptr<const MappedFile>& file, const std::string& name);

}  // namespace performer

#endif  // PERFORMER_DATA_NPY_H_
