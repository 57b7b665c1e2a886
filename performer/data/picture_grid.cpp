// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_grid.h"

#include <algorithm>

#include "favor/check.h"

namespace performer {
namespace {

constexpr uint8_t kWhite = 255, kGrey = 128;

}  // namespace

Picture picture_grid(const std::vector<std::vector<uint8_t>>& pictures, const PictureShape& shape,
                     int64_t columns) {
  FAVOR_CHECK(!pictures.empty() && columns >= 1, "picture_grid: there are ", pictures.size(),
              " pictures in ", columns, " columns, expected at least 1 in 1");
  const int64_t count = std::ssize(pictures), rows = (count + columns - 1) / columns;
  Picture grid;
  grid.width = columns * (shape.width + 1) + 1;
  grid.height = rows * (shape.height + 1) + 1;
  grid.channels = shape.channels;
  grid.pixels.assign(static_cast<size_t>(grid.width * grid.height * grid.channels), kWhite);
  const int64_t line = shape.width * shape.channels;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<uint8_t> values = pictures[static_cast<size_t>(i)];
    FAVOR_CHECK(std::ssize(values) <= shape.num_values(), "picture_grid: picture ", i, " has ",
                values.size(), " values, expected at most ", shape.num_values());
    values.resize(static_cast<size_t>(shape.num_values()), kGrey);
    const int64_t top = i / columns * (shape.height + 1) + 1;
    const int64_t left = i % columns * (shape.width + 1) + 1;
    for (int64_t row = 0; row < shape.height; ++row) {
      std::copy_n(values.begin() + row * line, line,
                  grid.pixels.begin() + ((top + row) * grid.width + left) * shape.channels);
    }
  }
  return grid;
}

}  // namespace performer
