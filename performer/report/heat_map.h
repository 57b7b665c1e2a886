// SPDX-License-Identifier: Apache-2.0
// Matrices as PNG pictures.
#ifndef PERFORMER_REPORT_HEAT_MAP_H_
#define PERFORMER_REPORT_HEAT_MAP_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace performer {

/// A row-major matrix, not owned.
struct MatrixView {
  std::span<const float> values;  ///< [rows * columns]
  int64_t rows = 0;
  int64_t columns = 0;
};

/// The bytes of a PNG that shows matrices beside each other, `per_row` to a row, each on its own
/// scale from its smallest (dark) to its largest entry (bright). With `root` the square root of a
/// matrix of weights is shown, because a few large weights would hide all others; negative weights
/// count as 0. Small matrices are enlarged, those of more than 800 rows or columns are shown by the
/// largest entry of each cell. Throws std::runtime_error if the picture cannot be made.
std::string heat_map_png(const std::vector<MatrixView>& matrices, int64_t per_row, bool root);

}  // namespace performer

#endif  // PERFORMER_REPORT_HEAT_MAP_H_
