// SPDX-License-Identifier: Apache-2.0
// Pictures of one size side by side in a larger one, to be looked at.
#ifndef PERFORMER_DATA_PICTURE_GRID_H_
#define PERFORMER_DATA_PICTURE_GRID_H_

#include <cstdint>
#include <vector>

#include "performer/data/pictures.h"
#include "performer/data/png.h"

namespace performer {

/// Rows of `columns` pictures [height, width, channels], one white pixel between them and around
/// them all; what is left of the last row is white. Pictures that end early are grey from there
/// on. Throws favor::Error for none at all and for pictures that are too long.
Picture picture_grid(const std::vector<std::vector<uint8_t>>& pictures, const PictureShape& shape,
                     int64_t columns);

}  // namespace performer

#endif  // PERFORMER_DATA_PICTURE_GRID_H_
