// SPDX-License-Identifier: Apache-2.0
#include "performer/data/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

void write_gzip(const std::string& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

std::vector<int64_t> values_of(const Pictures& pictures, int64_t i, int64_t count) {
  std::vector<uint8_t> values(static_cast<size_t>(count));
  pictures.read(i, values);
  return {values.begin(), values.end()};
}

TEST(Idx, ArraysComeBackPlainAndGzipped) {
  const TemporaryFolder folder;
  const std::string bytes = idx_bytes({2, 1, 3}, "abcdef");
  write_gzip(folder.file("a.gz"), bytes);
  for (const std::string& path : {folder.write("a", bytes), folder.file("a.gz")}) {
    const IdxArray array = read_idx(path, 3);
    EXPECT_EQ(array.sizes, (std::vector<int64_t>{2, 1, 3}));
    EXPECT_EQ(array.values, "abcdef");
  }
}

TEST(Idx, OtherFilesAreRefusedWithTheirPlace) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& bytes) {
    const std::string path = folder.write("a", bytes);
    const std::string text = message_of<std::runtime_error>([&] { read_idx(path, 3); });
    EXPECT_TRUE(text.starts_with(path + ": ")) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  const std::string good = idx_bytes({2, 2, 2}, "abcdefgh");
  EXPECT_EQ(message(good.substr(0, 11)), "byte 11: the file ends, expected a head of 16 bytes");
  EXPECT_EQ(message(idx_bytes({8}, "abcdefghijklm")),
            "byte 0: is 0x00000801, expected 0x00000803 (unsigned bytes, 3 sizes)");
  std::string floats = good;
  floats[2] = 0x0d;
  EXPECT_EQ(message(floats),
            "byte 0: is 0x00000d03, expected 0x00000803 (unsigned bytes, 3 sizes)");
  EXPECT_EQ(message(idx_bytes({2, 0, 2}, "")), "byte 8: size 2 is 0, expected 1 to 549755813888");
  EXPECT_EQ(message(idx_bytes({0xffffffff, 0xffff, 2}, "")),
            "byte 8: size 2 is 65535, expected 1 to 256");
  EXPECT_EQ(message(good.substr(0, 23)),
            "byte 23: the file has 23 bytes, expected 24 (the head of 16 and the 8 values that it "
            "names)");
  EXPECT_EQ(message(good + "x"),
            "byte 24: the file has 25 bytes, expected 24 (the head of 16 and the 8 values that it "
            "names)");
  EXPECT_THROW(read_idx(folder.file("none"), 3), std::runtime_error);
}

TEST(IdxPictures, AreDividedWithTheirClasses) {
  const TemporaryFolder folder;
  write_idx_pictures(folder, 40, 6, 3, 4);
  EXPECT_TRUE(has_idx_pictures(folder.path().string()));
  SplitOptions options;
  options.valid_fraction = 0.25;
  const PictureSplits splits = read_idx_pictures(folder.path().string(), options);
  EXPECT_EQ(splits.shape, (PictureShape{3, 3, 1}));
  EXPECT_EQ(splits.num_classes, 4);
  EXPECT_EQ(splits.train->size() + splits.valid->size(), 40);
  EXPECT_GT(splits.valid->size(), 0);
  EXPECT_LT(splits.valid->size(), 20);
  ASSERT_EQ(splits.test->size(), 6);
  for (int64_t i = 0; i < 6; ++i) {
    std::vector<int64_t> expected;
    for (int64_t v = 0; v < 9; ++v) expected.push_back((i * 31 + v * 7 + 6) % 256);
    EXPECT_EQ(values_of(*splits.test, i, 9), expected);
    EXPECT_EQ(splits.test->label(i), i % 4);
  }
  // Each training picture stands on one side, with the label it has in the file.
  std::vector<int> seen(40);
  for (const auto& side : {splits.train, splits.valid}) {
    for (int64_t i = 0; i < side->size(); ++i) {
      const int64_t first = values_of(*side, i, 9)[0];
      int64_t number = 0;
      while ((number * 31 + 40) % 256 != first) ++number;
      ++seen[static_cast<size_t>(number)];
      EXPECT_EQ(side->label(i), number % 4);
    }
  }
  EXPECT_EQ(seen, std::vector<int>(40, 1));
  options.seed = 1;
  EXPECT_NE(read_idx_pictures(folder.path().string(), options).train->fingerprint(),
            splits.train->fingerprint());
}

TEST(IdxPictures, FilesThatDoNotFitEachOtherAreRefused) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  const auto error = [&] {
    return message_of<std::runtime_error>([&] { read_idx_pictures(root, SplitOptions()); });
  };
  EXPECT_FALSE(has_idx_pictures(root));
  EXPECT_EQ(error(), root + ": has no file train-images-idx3-ubyte (.gz or not), expected one");
  write_idx_pictures(folder, 4, 4, 2, 2);
  const std::string labels = folder.write("t10k-labels-idx1-ubyte", idx_bytes({3}, "abc"));
  EXPECT_EQ(error(), labels + ": byte 4: has 3 labels, expected 4 (the pictures of " +
                         folder.file("t10k-images-idx3-ubyte") + ")");
  folder.write("t10k-labels-idx1-ubyte", idx_bytes({4}, std::string("\0\1\2\0", 4)));
  EXPECT_EQ(error(), labels + ": byte 10: label is 2, expected 0 to 1 (the classes of " +
                         folder.file("train-labels-idx1-ubyte") + ")");
  std::filesystem::remove(labels);
  EXPECT_EQ(error(), root + ": has labels of one set only (" +
                         folder.file("train-labels-idx1-ubyte") +
                         "), expected those of train and t10k or none");
  std::filesystem::remove(folder.file("train-labels-idx1-ubyte"));
  const PictureSplits splits = read_idx_pictures(root, SplitOptions());
  EXPECT_EQ(splits.num_classes, 0);
  EXPECT_EQ(splits.test->label(0), -1);
  const std::string images = folder.write("t10k-images-idx3-ubyte", idx_bytes({1, 2, 3}, "abcdef"));
  EXPECT_EQ(error(), images + ": byte 8: the pictures have 2 x 3 pixels, grey, expected 2 x 2 " +
                         "pixels, grey (as " + folder.file("train-images-idx3-ubyte") + ")");
}

TEST(PixelRows, PredictEveryValueFromThoseBefore) {
  const PictureShape shape{1, 2, 3};
  const auto pictures =
      std::make_shared<StoredPictures>(shape, "rgbRGBabcABC", std::vector<uint16_t>());
  const auto rows = pixel_rows(pictures, shape, 256);
  EXPECT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->length(0), 6);
  const Example example = rows->example(1, 3);
  EXPECT_EQ(example.tokens, (std::vector<int64_t>{256, 'a', 'b', 'c', 'A', 'B'}));
  EXPECT_EQ(example.targets, (std::vector<int64_t>{'a', 'b', 'c', 'A', 'B', 'C'}));
  EXPECT_EQ(example.label, -1);
}

TEST(PictureRows, PlaceThePictureInTheMiddle) {
  const PictureShape shape{1, 2, 1};
  const auto pictures = std::make_shared<StoredPictures>(shape, "ab", std::vector<uint16_t>{300});
  const auto rows = picture_rows(pictures, shape, 4, 256);
  EXPECT_EQ(rows->length(0), 17);
  std::vector<int64_t> expected(17, 0);
  expected[0] = 256;
  expected[1 + 4 + 1] = 'a';
  expected[1 + 4 + 2] = 'b';
  EXPECT_EQ(rows->example(0, 0).tokens, expected);
  EXPECT_EQ(rows->example(0, 0).label, 300);
  EXPECT_TRUE(rows->example(0, 0).targets.empty());
  EXPECT_EQ(picture_rows(pictures, shape, 4, -1)->length(0), 16);
  EXPECT_EQ(message_of<favor::Error>([&] { picture_rows(pictures, shape, 1, -1); }),
            "the pictures have 1 x 2 pixels, grey, expected at most 1 x 1 pixels (--image-size)");
}

}  // namespace
}  // namespace performer
