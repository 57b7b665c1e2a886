// SPDX-License-Identifier: Apache-2.0
// IDX files, the format of MNIST and of the sets that replace it: arrays of bytes behind a head of
// big-endian numbers.
#ifndef PERFORMER_DATA_IDX_H_
#define PERFORMER_DATA_IDX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "performer/data/pictures.h"

namespace performer {

struct IdxArray {
  std::vector<int64_t> sizes;
  std::string values;  ///< [sizes...]
};

/// Reads a file of unsigned bytes with `num_sizes` sizes, gzipped or not. Throws std::runtime_error
/// `file: byte N: got, expected` for another type or number of sizes, a size of 0, and for a file
/// that is shorter or longer than its sizes say.
IdxArray read_idx(const std::string& path, int64_t num_sizes);

/// Whether a folder holds train-images-idx3-ubyte, with .gz behind or not.
bool has_idx_pictures(const std::string& folder);

/// <folder>/train-images-idx3-ubyte and t10k-images-idx3-ubyte, the test set, with .gz behind or
/// not; classes of train-labels-idx1-ubyte and t10k-labels-idx1-ubyte, if there are such files. Of
/// the training pictures the share options.valid_fraction is held out, equal ones together. Throws
/// what read_idx throws, and std::runtime_error for files that do not fit each other.
PictureSplits read_idx_pictures(const std::string& folder, const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_IDX_H_
