// SPDX-License-Identifier: Apache-2.0
#include "performer/data/png.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

TEST(Png, PicturesComeBackAsTheyWere) {
  const TemporaryFolder folder;
  for (const int64_t channels : {1, 3}) {
    Picture picture{5, 3, channels, {}};
    for (int64_t i = 0; i < 15 * channels; ++i) picture.pixels.push_back(uint8_t(i * 5));
    write_png(folder.file("a.png"), picture);
    const Picture read = read_png(folder.file("a.png"), channels);
    EXPECT_EQ(read.width, 5);
    EXPECT_EQ(read.height, 3);
    EXPECT_EQ(read.pixels, picture.pixels);
  }
  // Grey as colour has three equal channels.
  write_png(folder.file("g.png"), {2, 1, 1, {7, 200}});
  EXPECT_EQ(read_png(folder.file("g.png"), 3).pixels,
            (std::vector<uint8_t>{7, 7, 7, 200, 200, 200}));
}

TEST(Png, DamagedFilesAreNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.png", "no picture at all, but long enough");
  const auto read = [&] { read_png(path, 1); };
  EXPECT_TRUE(message_of<std::runtime_error>(read).starts_with(path + ": is no PNG picture ("));
  Picture picture{40, 40, 1, std::vector<uint8_t>(1600)};
  for (size_t i = 0; i < 1600; ++i) picture.pixels[i] = uint8_t(i * i);
  write_png(path, picture);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_TRUE(message_of<std::runtime_error>(read).starts_with(path + ": cannot be read ("));
  EXPECT_THROW(read_png(path, 2), favor::Error);
  EXPECT_THROW(write_png(path, {2, 2, 1, {0}}), favor::Error);
}

}  // namespace
}  // namespace performer
