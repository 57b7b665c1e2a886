// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_grid.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

TEST(PictureGrid, PlacesEachPictureInItsCell) {
  const PictureShape shape{2, 1, 3};
  const Picture grid =
      picture_grid({{1, 2, 3, 4, 5, 6}, {7, 8, 9}, {10, 11, 12, 13, 14, 15}}, shape, 2);
  EXPECT_EQ(grid.width, 5);
  EXPECT_EQ(grid.height, 7);
  EXPECT_EQ(grid.channels, 3);
  const auto at = [&](int64_t row, int64_t column, int64_t channel) {
    return int{grid.pixels[static_cast<size_t>((row * 5 + column) * 3 + channel)]};
  };
  int white = 0;
  for (const uint8_t value : grid.pixels) white += value == 255;
  EXPECT_EQ(white, (35 - 6) * 3);
  EXPECT_EQ(at(1, 1, 0), 1);
  EXPECT_EQ(at(2, 1, 2), 6);
  EXPECT_EQ(at(1, 3, 1), 8);
  EXPECT_EQ(at(2, 3, 1), 128) << "what is missing";
  EXPECT_EQ(at(4, 1, 0), 10);
  EXPECT_EQ(at(4, 3, 0), 255) << "no picture";
}

TEST(PictureGrid, WrongSizesAreRefused) {
  const PictureShape shape{1, 2, 1};
  EXPECT_EQ(message_of<favor::Error>([&] { picture_grid({}, shape, 3); }),
            "picture_grid: there are 0 pictures in 3 columns, expected at least 1 in 1");
  EXPECT_EQ(message_of<favor::Error>([&] {
              picture_grid({{1, 2, 3}}, shape, 3);
            }),
            "picture_grid: picture 0 has 3 values, expected at most 2");
}

}  // namespace
}  // namespace performer
