// SPDX-License-Identifier: Apache-2.0
#include "performer/report/heat_map.h"

#include <gtest/gtest.h>
#include <png.h>

#include <cmath>

#include "favor/check.h"

namespace performer {
namespace {

struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;

  int brightness(int64_t x, int64_t y) const {
    const size_t at = static_cast<size_t>(3 * (y * width + x));
    return pixels[at] + pixels[at + 1] + pixels[at + 2];
  }
};

Picture decode(const std::string& bytes) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()), 0);
  image.format = PNG_FORMAT_RGB;
  Picture picture{image.width, image.height, std::vector<uint8_t>(PNG_IMAGE_SIZE(image))};
  EXPECT_NE(png_image_finish_read(&image, nullptr, picture.pixels.data(), 0, nullptr), 0);
  return picture;
}

TEST(HeatMap, BrighterIsLargerAndPanelsStandInRows) {
  const std::vector<float> a = {0, 1, 0.25f, 0.5f};
  const std::vector<float> b = {5, 5, 7, 5};
  const std::vector<MatrixView> panels = {{a, 2, 2}, {b, 2, 2}, {a, 2, 2}};
  const Picture picture = decode(heat_map_png(panels, 2, /*root=*/false));
  EXPECT_EQ(picture.width, 486);
  EXPECT_EQ(picture.height, 486);
  EXPECT_LT(picture.brightness(10, 10), picture.brightness(10, 130));    // 0 and 0.25
  EXPECT_LT(picture.brightness(10, 130), picture.brightness(130, 130));  // 0.5
  EXPECT_LT(picture.brightness(130, 130), picture.brightness(130, 10));  // 1
  EXPECT_EQ(picture.brightness(243, 100), 765);                          // the gap
  EXPECT_EQ(picture.brightness(256, 10), picture.brightness(10, 10));    // smallest of its panel
  EXPECT_EQ(picture.brightness(256, 130), picture.brightness(130, 10));  // largest
  EXPECT_EQ(picture.brightness(10, 256), picture.brightness(10, 10));    // the second row
  EXPECT_EQ(picture.brightness(300, 300), 765);                          // no fourth panel
}

TEST(HeatMap, RootLiftsSmallWeightsAndNegativeOnesAreZero) {
  const std::vector<float> weights = {0, 0.01f, 1, -3};
  const Picture linear = decode(heat_map_png({{weights, 2, 2}}, 1, false));
  const Picture root = decode(heat_map_png({{weights, 2, 2}}, 1, true));
  EXPECT_GT(root.brightness(130, 10), root.brightness(10, 10));
  EXPECT_EQ(root.brightness(130, 130), root.brightness(10, 10));
  EXPECT_LT(linear.brightness(130, 130), linear.brightness(10, 10));
}

TEST(HeatMap, LargeMatricesShowTheLargestEntryOfACell) {
  std::vector<float> weights(1600 * 1601, 0.0f);
  weights[1599 * 1601 + 3] = 1;
  const Picture picture = decode(heat_map_png({{weights, 1600, 1601}}, 1, true));
  EXPECT_EQ(picture.width, 800);
  EXPECT_EQ(picture.height, 800);
  EXPECT_GT(picture.brightness(1, 799), picture.brightness(5, 799));
}

TEST(HeatMap, ConstantAndMissingValuesAreDrawn) {
  const std::vector<float> level(4, 2.0f);
  const Picture picture = decode(heat_map_png({{level, 2, 2}}, 1, false));
  EXPECT_EQ(picture.brightness(10, 10), picture.brightness(130, 130));
  const std::vector<float> missing = {std::nanf(""), 1, 2, 3};
  for (const bool root : {false, true}) {
    const Picture dark = decode(heat_map_png({{missing, 2, 2}}, 1, root));
    EXPECT_LE(dark.brightness(10, 10), dark.brightness(130, 10));
    EXPECT_LT(dark.brightness(130, 10), dark.brightness(10, 130));
    EXPECT_LT(dark.brightness(10, 130), dark.brightness(130, 130));
  }
  EXPECT_THROW(heat_map_png({}, 1, true), favor::Error);
  EXPECT_THROW(heat_map_png({{level, 2, 3}}, 1, true), favor::Error);
}

}  // namespace
}  // namespace performer
