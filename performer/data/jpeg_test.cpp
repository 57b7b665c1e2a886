// SPDX-License-Identifier: Apache-2.0
#include "performer/data/jpeg.h"

#include <gtest/gtest.h>

#include <cmath>

#include "favor/check.h"
#include "performer/data/testing.h"
#include "performer/data/testing_jpeg.h"

namespace performer {
namespace {

// Slopes, which the format keeps almost unchanged.
Picture slopes(int64_t width, int64_t height, int64_t channels) {
  Picture picture{width, height, channels, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        picture.pixels.push_back(static_cast<uint8_t>(40 + 2 * x + 3 * y + 20 * c));
      }
    }
  }
  return picture;
}

int64_t largest_difference(const Picture& a, const Picture& b) {
  EXPECT_EQ(a.pixels.size(), b.pixels.size());
  int64_t largest = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    largest = std::max<int64_t>(largest, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  }
  return largest;
}

TEST(Jpeg, PicturesComeBackNearlyAsTheyWere) {
  const TemporaryFolder folder;
  for (const int64_t channels : {1, 3}) {
    const Picture picture = slopes(19, 13, channels);
    const std::string path = folder.write("a.jpg", jpeg_bytes(picture));
    const Picture read = read_jpeg(path, channels);
    EXPECT_EQ(read.width, 19);
    EXPECT_EQ(read.height, 13);
    EXPECT_LE(largest_difference(read, picture), 12);
  }
  // Grey as colour has three equal channels; colour as grey is its luminance.
  folder.write("g.jpg", jpeg_bytes(slopes(16, 8, 1)));
  const Picture grey = read_jpeg(folder.file("g.jpg"), 1),
                colour = read_jpeg(folder.file("g.jpg"), 3);
  for (size_t i = 0; i < grey.pixels.size(); ++i) {
    EXPECT_EQ(colour.pixels[3 * i + 2], grey.pixels[i]);
  }
  Picture red{8, 8, 3, {}};
  for (int i = 0; i < 64; ++i) red.pixels.insert(red.pixels.end(), {200, 0, 0});
  folder.write("r.jpg", jpeg_bytes(red));
  EXPECT_NEAR(read_jpeg(folder.file("r.jpg"), 1).pixels[9], 0.299 * 200, 3);
}

TEST(Jpeg, DamagedFilesAreRefusedWithTheirPlace) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.jpg");
  const auto error = [&](const std::string& bytes) {
    folder.write("a.jpg", bytes);
    const std::string text = message_of<std::runtime_error>([&] { read_jpeg(path, 3); });
    EXPECT_TRUE(text.starts_with(path + ": byte ")) << text;
    return text;
  };
  EXPECT_NE(error("no picture at all")
                .find("(Not a JPEG file: starts with 0x6e 0x6f), expected a "
                      "JPEG picture"),
            std::string::npos);
  EXPECT_NE(error("").find("expected a JPEG picture"), std::string::npos);
  const std::string good = jpeg_bytes(slopes(64, 64, 3));
  EXPECT_NE(error(good.substr(0, good.size() / 2)).find("(Premature end of JPEG file)"),
            std::string::npos);
  EXPECT_NE(error(good.substr(0, 100)).find("expected a JPEG picture"), std::string::npos);
  std::string torn = good;
  for (size_t i = good.size() / 2; i < good.size() / 2 + 40; ++i) torn[i] = '\x7f';
  torn[good.size() / 2 + 20] = '\xff';
  torn[good.size() / 2 + 21] = '\xd9';
  EXPECT_NE(error(torn).find("cannot be read ("), std::string::npos);
  EXPECT_NE(
      error(jpeg_bytes(slopes(8, 8, 4))).find("has 4 colour components, expected 1 (grey) or 3"),
      std::string::npos);
  EXPECT_THROW(read_jpeg(folder.file("none.jpg"), 3), std::runtime_error);
  EXPECT_THROW(read_jpeg(path, 2), favor::Error);
}

}  // namespace
}  // namespace performer
