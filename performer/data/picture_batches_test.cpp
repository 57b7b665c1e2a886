// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_batches.h"

#include <gtest/gtest.h>

#include <set>

#include "performer/data/testing.h"
#include "performer/data/testing_numpy.h"

namespace performer {
namespace {

std::vector<int> values_of(const Pictures& pictures, int64_t i, size_t count) {
  std::vector<uint8_t> values(count);
  pictures.read(i, values);
  return {values.begin(), values.end()};
}

std::string npz(const std::string& shape, const std::string& data, const std::string& labels,
                const std::string& count, bool deflated = false) {
  return zip_bytes_of({{"data.npy", npy_bytes("|u1", shape, data)},
                       {"labels.npy", npy_bytes("|u1", count, labels)}},
                      deflated);
}

SplitOptions no_valid() {
  SplitOptions options;
  options.valid_fraction = 0;
  return options;
}

TEST(PictureBatches, PlanesBecomePixelsInEveryLayout) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  EXPECT_FALSE(has_picture_batches(root));
  const std::vector<int> first = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
  const std::vector<int> second = {212, 216, 220, 213, 217, 221, 214, 218, 222, 215, 219, 223};
  for (const auto& [name, bytes] : {std::pair{"train_data_batch_1", kNumpyPickle2},
                                    std::pair{"train_data_batch_1", kNumpyPickle3},
                                    std::pair{"train_data_batch_1", kNumpyPickle4},
                                    std::pair{"train_data_batch_1.npz", kNumpyCompressed}}) {
    const std::string path = folder.write(name, bytes);
    folder.write("val_data", kNumpyPickle4);
    const PictureSplits splits = read_picture_batches(root, no_valid());
    EXPECT_EQ(splits.shape, (PictureShape{2, 2, 3}));
    EXPECT_EQ(splits.num_classes, 3);
    ASSERT_EQ(splits.train->size(), 2);
    EXPECT_EQ(values_of(*splits.train, 0, 12), first);
    EXPECT_EQ(values_of(*splits.train, 1, 12), second);
    EXPECT_EQ(splits.train->label(0), 2);
    EXPECT_EQ(splits.train->label(1), 0);
    EXPECT_EQ(values_of(*splits.test, 1, 12), second);
    EXPECT_EQ(splits.source, root + ": 1 batch and val_data, pictures of 2 x 2 pixels, in colour");
    std::filesystem::remove(path);
  }
}

TEST(PictureBatches, FollowEachOtherAndAreDivided) {
  const TemporaryFolder folder;
  for (int batch = 0; batch < 3; ++batch) {
    std::string data, labels;
    for (int i = 0; i < 20; ++i) {
      data += std::string(3, static_cast<char>(20 * batch + i));
      labels += static_cast<char>(1 + i % 7);
    }
    folder.write("train_data_batch_" + std::to_string(batch + 1) + ".npz",
                 npz("(20, 3)", data, labels, "(20,)", batch == 1));
  }
  folder.write("val_data.npz", npz("(1, 3)", "abc", "\x09", "(1,)"));
  SplitOptions options;
  options.valid_fraction = 0.3;
  const PictureSplits splits = read_picture_batches(folder.path().string(), options);
  EXPECT_EQ(splits.num_classes, 9);
  EXPECT_GT(splits.valid->size(), 5);
  EXPECT_LT(splits.valid->size(), 35);
  std::set<int> seen;
  for (const auto& side : {splits.train, splits.valid}) {
    for (int64_t i = 0; i < side->size(); ++i) {
      const int value = values_of(*side, i, 3)[1];
      EXPECT_TRUE(seen.insert(value).second) << value;
      EXPECT_EQ(side->label(i), value % 20 % 7);
    }
  }
  EXPECT_EQ(seen.size(), 60u);
  options.seed = 3;
  EXPECT_NE(read_picture_batches(folder.path().string(), options).train->fingerprint(),
            splits.train->fingerprint());
}

TEST(PictureBatches, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string(), path = folder.file("train_data_batch_1.npz");
  const auto error = [&] {
    return message_of<std::runtime_error>([&] { read_picture_batches(root, no_valid()); });
  };
  EXPECT_EQ(error(), root + ": has no file train_data_batch_1 (.npz or not), expected one");
  folder.write("train_data_batch_1.npz", npz("(2, 3)", "abcdef", "\x01\x02", "(2,)"));
  EXPECT_EQ(error(), root + ": has no file val_data (.npz or not), expected one");
  folder.write("val_data.npz", npz("(1, 12)", "abcdefghijkl", "\x01", "(1,)"));
  EXPECT_EQ(error(), folder.file("val_data.npz") +
                         ": the pictures have 2 x 2 pixels, expected 1 x 1 (as the first batch)");
  folder.write("train_data_batch_1.npz", npz("(1, 6)", "abcdef", "\x01", "(1,)"));
  EXPECT_EQ(error(), path + ": data is |u1 (1, 6), expected |u1 (N, 3 x edge x edge)");
  folder.write("train_data_batch_1.npz", npz("(6,)", "abcdef", "\x01", "(1,)"));
  EXPECT_EQ(error(), path + ": data is |u1 (6), expected |u1 (N, 3 x edge x edge)");
  folder.write("train_data_batch_1.npz", npz("(2, 3)", "abcdef", "\x01", "(1,)"));
  EXPECT_EQ(error(), path + ": labels: there are 1, expected 2 (one a picture)");
  folder.write("train_data_batch_1.npz",
               npz("(2, 3)", "abcdef", std::string("\x01\x00", 2), "(2,)"));
  EXPECT_EQ(error(), path + ": labels: label 1 is 0, expected 1 to 65535");
  std::filesystem::remove(path);
  folder.write("train_data_batch_1", "\x80\x02}.");
  EXPECT_EQ(error(),
            folder.file("train_data_batch_1") + ": has no 'data', expected a dictionary with it");
  folder.write("train_data_batch_1", "\x80\x02N.");
  EXPECT_EQ(error(),
            folder.file("train_data_batch_1") + ": has no 'data', expected a dictionary with it");
  std::string labels = kNumpyPickle3;
  const size_t at = labels.find("(K\x03K\x01");
  ASSERT_NE(at, std::string::npos);
  labels.replace(at, 5, "(NNNN");
  labels.replace(at, 5, "(K\x03N)");
  folder.write("train_data_batch_1", labels);
  EXPECT_EQ(error(), folder.file("train_data_batch_1") +
                         ": labels: item 1 is no whole number, expected one");
}

}  // namespace
}  // namespace performer
