// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_files.h"

#include <gtest/gtest.h>

#include <map>

#include "favor/check.h"
#include "performer/data/testing.h"
#include "performer/data/testing_jpeg.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

// All of one value, so that a tile tells where it is from.
Picture plain(int64_t height, int64_t width, int64_t channels, int value) {
  return {width, height, channels,
          std::vector<uint8_t>(static_cast<size_t>(height * width * channels), uint8_t(value))};
}

void write_picture(const TemporaryFolder& folder, const std::string& name, const Picture& picture) {
  fs::create_directories(fs::path(folder.file(name)).parent_path());
  write_png(folder.file(name), picture);
}

std::vector<int> first_values(const Pictures& pictures, const PictureShape& shape) {
  std::vector<int> values;
  for (int64_t i = 0; i < pictures.size(); ++i) {
    std::vector<uint8_t> picture(static_cast<size_t>(shape.num_values()));
    pictures.read(i, picture);
    values.push_back(picture[0]);
    EXPECT_EQ(pictures.label(i), -1);
  }
  return values;
}

SplitOptions shares(double valid, double test) {
  SplitOptions options;
  options.valid_fraction = valid;
  options.test_fraction = test;
  return options;
}

TEST(PictureFolder, HoldsPngAndJpegInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  write_picture(folder, "b/two.PNG", plain(4, 4, 1, 20));
  write_picture(folder, "a.png", plain(4, 4, 3, 10));
  folder.write("b/three.JPeg", jpeg_bytes(plain(4, 4, 1, 30)));
  folder.write("b/notes.txt", "no picture");
  const PictureShape shape{4, 4, 3};
  const PictureSplits splits =
      read_picture_folder(folder.path().string(), shape, false, shares(0, 0));
  EXPECT_EQ(first_values(*splits.train, shape), (std::vector<int>{10, 30, 20}));
  EXPECT_EQ(splits.valid->size(), 0);
  EXPECT_EQ(splits.test->size(), 0);
  EXPECT_EQ(splits.num_classes, 0);
  EXPECT_EQ(splits.source, folder.path().string() + ": 3 files, 4 x 4 pixels, in colour");
}

TEST(PictureFolder, TilesOfOnePictureStandInOneSet) {
  const TemporaryFolder folder;
  for (int i = 0; i < 12; ++i) {
    // 2 x 3 tiles, and a rest that is left out.
    write_picture(folder, "photo-" + std::to_string(i) + ".png", plain(9, 15, 1, 10 * i));
  }
  write_picture(folder, "small.png", plain(3, 30, 1, 200));
  const PictureShape shape{4, 5, 1};
  const PictureSplits splits =
      read_picture_folder(folder.path().string(), shape, true, shares(0.2, 0.1));
  std::map<int, int> side_of;
  int side = 0, tiles = 0;
  for (const auto& set : {splits.train, splits.valid, splits.test}) {
    EXPECT_GT(set->size(), 0);
    for (const int value : first_values(*set, shape)) {
      const auto [at, inserted] = side_of.emplace(value, side);
      EXPECT_EQ(at->second, side) << value;
      ++tiles;
    }
    ++side;
  }
  EXPECT_EQ(side_of.size(), 12u);
  EXPECT_EQ(tiles, 12 * 6);
  EXPECT_NE(splits.source.find("13 files, 72 tiles of 4 x 5 pixels, grey; 1 files smaller than a "
                               "tile left out"),
            std::string::npos)
      << splits.source;
  SplitOptions other = shares(0.2, 0.1);
  other.seed = 5;
  const PictureSplits again = read_picture_folder(folder.path().string(), shape, true, other);
  EXPECT_NE(again.train->fingerprint(), splits.train->fingerprint());
}

TEST(PictureFolder, TilesGoFromLeftToRightAndDown) {
  const TemporaryFolder folder;
  Picture picture{5, 4, 3, {}};
  for (int i = 0; i < 60; ++i) picture.pixels.push_back(uint8_t(i));
  write_picture(folder, "a.png", picture);
  const PictureShape shape{2, 2, 3};
  const PictureSplits splits =
      read_picture_folder(folder.path().string(), shape, true, shares(0, 0));
  ASSERT_EQ(splits.train->size(), 4);
  std::vector<uint8_t> tile(12);
  splits.train->read(3, tile);
  EXPECT_EQ(tile, (std::vector<uint8_t>{36, 37, 38, 39, 40, 41, 51, 52, 53, 54, 55, 56}));
}

TEST(PictureFolder, MayHaveSetsOfItsOwn) {
  const TemporaryFolder folder;
  for (int i = 0; i < 6; ++i) {
    write_picture(folder, "train_2x2/" + std::to_string(i) + ".png", plain(2, 2, 3, i));
  }
  write_picture(folder, "valid_2x2/0.png", plain(2, 2, 3, 100));
  write_picture(folder, "other.png", plain(9, 9, 3, 100));
  const PictureShape shape{2, 2, 3};
  const std::string root = folder.path().string();
  PictureSplits splits = read_picture_folder(root, shape, false, shares(0.5, 0.3));
  EXPECT_EQ(first_values(*splits.train, shape), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(first_values(*splits.valid, shape), std::vector<int>{100});
  EXPECT_EQ(splits.test->size(), 0);
  fs::rename(folder.file("valid_2x2"), folder.file("test"));
  splits = read_picture_folder(root, shape, false, shares(0.5, 0.3));
  EXPECT_EQ(splits.train->size(), 3);
  EXPECT_EQ(splits.valid->size(), 3);
  EXPECT_EQ(first_values(*splits.test, shape), std::vector<int>{100});
}

TEST(PictureFolder, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  const auto error = [&](bool tile, const SplitOptions& options) {
    return message_of<std::runtime_error>([&] {
      read_picture_folder(root, {4, 4, 1}, tile, options);
    });
  };
  EXPECT_EQ(error(false, shares(0, 0)),
            root + ": holds no file named .png, .jpg or .jpeg, expected at least one");
  write_picture(folder, "a.png", plain(3, 5, 1, 0));
  EXPECT_EQ(error(false, shares(0, 0)),
            folder.file("a.png") +
                ": is 3 x 5 pixels, expected 4 x 4 (--image-size; --tile cuts larger ones)");
  EXPECT_EQ(error(true, shares(0, 0)), root + ": no picture to train on holds a tile of 4 x 4 " +
                                           "pixels, expected at least one");
  EXPECT_EQ(error(true, shares(0.1, 0.1)),
            root + ": holds 1 pictures, expected more than validation and test take");
  folder.write("a.png", "no picture");
  EXPECT_TRUE(error(false, shares(0, 0)).starts_with(folder.file("a.png") + ": is no PNG"));
  EXPECT_EQ(message_of<std::runtime_error>([&] {
              read_picture_folder(root + "/a.png", {4, 4, 1}, false, shares(0, 0));
            }),
            root + "/a.png: is no folder, expected one of pictures");
  EXPECT_EQ(message_of<std::runtime_error>([&] { read_picture(root + "/a.gif", 1); }),
            root + "/a.gif: is named '.gif', expected .png, .jpg or .jpeg");
}

}  // namespace
}  // namespace performer
