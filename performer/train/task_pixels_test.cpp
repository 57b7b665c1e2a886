// SPDX-License-Identifier: Apache-2.0
// Pictures from their files to the units of a score.
#include <gtest/gtest.h>

#include <cmath>

#include "favor/check.h"
#include "performer/data/png.h"
#include "performer/data/testing.h"
#include "performer/data/testing_numpy.h"
#include "performer/train/task.h"

namespace performer {
namespace {

TrainConfig config_of(const std::string& task, const std::string& data, int64_t image_size) {
  TrainConfig config;
  config.data.task = task;
  config.data.data = data;
  config.model.head = find_task(task).head;
  find_task(task).set_defaults(config);
  config.data.image_size = image_size;
  config.data.valid_fraction = 0.2;
  find_task(task).settle(config);
  config.model.max_length = config.data.length;
  return config;
}

TEST(Pixels, ReachTheModelAsTheyLieInTheFile) {
  const TemporaryFolder folder;
  write_idx_pictures(folder, 30, 5, 4, 3);
  const TrainConfig config = config_of("pixels", folder.path().string(), 4);
  config.check();
  EXPECT_EQ(config.data.length, 16);
  const auto data = open_task(config, nullptr);
  EXPECT_EQ(data->vocabulary()->kind(), "bytes");
  EXPECT_EQ(data->start_token(), 256);
  EXPECT_EQ(data->num_classes(), 0);
  EXPECT_EQ(data->size("train") + data->size("valid"), 30);
  EXPECT_GT(data->size("valid"), 0);
  EXPECT_EQ(data->size("test"), 5);
  const EvalSet test = data->eval_set("test", 0);
  ASSERT_EQ(test.batches->size(), 1);
  const Batch batch = test.batches->batch(0);
  EXPECT_EQ(batch.rows, 5);
  EXPECT_EQ(batch.length, 16);
  EXPECT_EQ(batch.num_targets, 80);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t v = 0; v < 16; ++v) {
      const int64_t value = (i * 31 + v * 7 + 5) % 256;
      EXPECT_EQ(batch.targets[i * 16 + v], value);
      EXPECT_EQ(batch.tokens[i * 16 + v], v == 0 ? 256 : (i * 31 + v * 7 - 7 + 5) % 256);
    }
  }
  const Batch trained = data->train_batches()->next();
  EXPECT_EQ(trained.length, 16);
  EXPECT_EQ(trained.num_targets, trained.rows * 16);
}

TEST(Pixels, HaveAxialPositionsOfThePicture) {
  TrainConfig config = config_of("pixels", "", 4);
  EXPECT_EQ(config.model.positions, PositionKind::kAxial);
  EXPECT_EQ(config.model.max_positions(), 16);
  config.data.channels = 3;
  config.data.image_size = 64;
  find_task("pixels").settle(config);
  EXPECT_EQ(config.data.length, 12288);
  EXPECT_EQ(config.model.axial_rows, 64);
  EXPECT_EQ(config.model.axial_columns, 64);
  EXPECT_EQ(config.model.axial_channels, 3);
  // The token before the picture takes a place.
  config = config_of("picture-classes", "", 4);
  EXPECT_EQ(config.model.axial_rows, 4);
  config.model.pooling = PoolingKind::kCls;
  find_task("picture-classes").settle(config);
  EXPECT_EQ(config.model.axial_rows, 5);
}

TEST(Pixels, AreScoredInBitsPerDimension) {
  const TemporaryFolder folder;
  write_idx_pictures(folder, 30, 5, 4, 3);
  const auto data = open_task(config_of("pixels", folder.path().string(), 4), nullptr);
  const EvalSet test = data->eval_set("test", 0);
  ASSERT_EQ(test.units.size(), 2u);
  EXPECT_EQ(test.units[0].name, "bits_per_dim");
  EXPECT_DOUBLE_EQ(in_unit(test.units[0], std::log(256.0), 1), 8);
  EXPECT_EQ(test.units[1].name, "perplexity");
  EXPECT_DOUBLE_EQ(in_unit(test.units[1], std::log(256.0), 1), 256);
  // Values go evenly over all bytes: frequencies know next to nothing.
  const BaselineScore baseline = data->baseline().score(*test.batches);
  EXPECT_NEAR(baseline.loss / std::log(2.0), 8, 0.6);
}

TEST(Pixels, ComeFromFoldersInTilesAndInColour) {
  const TemporaryFolder folder;
  for (int i = 0; i < 8; ++i) {
    Picture photo{9, 13, 3, std::vector<uint8_t>(9 * 13 * 3, uint8_t(i))};
    write_png(folder.file(std::to_string(i) + ".png"), photo);
  }
  TrainConfig config = config_of("pixels", folder.path().string(), 4);
  config.data.channels = 3;
  config.data.tile = true;
  find_task("pixels").settle(config);
  const auto data = open_task(config, nullptr);
  // Three rows of two tiles of each file; a fifth of the files to validate on, one to test on.
  EXPECT_EQ(data->size("train"), 5 * 6);
  EXPECT_EQ(data->size("valid"), 2 * 6);
  EXPECT_EQ(data->size("test"), 6);
  const Batch batch = data->train_batches()->next();
  EXPECT_EQ(batch.length, 48);
  EXPECT_EQ(batch.targets[0], batch.targets[47]);
  config.data.channels = 1;
  find_task("pixels").settle(config);
  EXPECT_EQ(open_task(config, nullptr)->train_batches()->next().length, 16);
  config.data.tile = false;
  EXPECT_NE(message_of<std::runtime_error>([&] {
              open_task(config, nullptr);
            }).find("is 13 x 9 pixels, expected 4 x 4"),
            std::string::npos);
}

TEST(Pixels, ComeFromBatchesOfImageNet) {
  const TemporaryFolder folder;
  folder.write("train_data_batch_1", kNumpyPickle2);
  folder.write("val_data.npz", kNumpyCompressed);
  TrainConfig config = config_of("pixels", folder.path().string(), 2);
  config.data.channels = 3;
  config.data.valid_fraction = 0;
  find_task("pixels").settle(config);
  const auto data = open_task(config, nullptr);
  EXPECT_EQ(data->size("train"), 2);
  EXPECT_EQ(data->size("valid"), 0);
  const Batch batch = data->eval_set("test", 0).batches->batch(0);
  EXPECT_EQ(std::vector<int64_t>(batch.targets.begin(), batch.targets.begin() + 6),
            (std::vector<int64_t>{0, 4, 8, 1, 5, 9}));
  config.data.tile = true;
  EXPECT_EQ(message_of<favor::Error>([&] { open_task(config, nullptr); }),
            "tile is true, expected false (pictures of " + folder.path().string() + ")");
  TrainConfig classes = config_of("picture-classes", folder.path().string(), 4);
  classes.data.channels = 3;
  classes.data.valid_fraction = 0;
  find_task("picture-classes").settle(classes);
  const auto labelled = open_task(classes, nullptr);
  EXPECT_EQ(labelled->num_classes(), 3);
  EXPECT_EQ(labelled->eval_set("test", 0).batches->batch(0).targets, (std::vector<int64_t>{2, 0}));
}

TEST(PictureClasses, ArePaddedAndHaveTheirLabels) {
  const TemporaryFolder folder;
  write_idx_pictures(folder, 30, 5, 4, 3);
  TrainConfig config = config_of("picture-classes", folder.path().string(), 6);
  EXPECT_EQ(config.data.length, 36);
  config.check();
  const auto data = open_task(config, nullptr);
  EXPECT_EQ(data->num_classes(), 3);
  const Batch batch = data->eval_set("test", 0).batches->batch(0);
  EXPECT_TRUE(batch.classes);
  EXPECT_EQ(batch.length, 36);
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.tokens[7], 5);
  EXPECT_EQ(batch.tokens[6], 0);
  config.model.pooling = PoolingKind::kCls;
  find_task("picture-classes").settle(config);
  config.model.max_length = config.data.length;
  const Batch cls = open_task(config, nullptr)->eval_set("test", 0).batches->batch(0);
  EXPECT_EQ(cls.length, 37);
  EXPECT_EQ(cls.tokens[0], 256);
  EXPECT_EQ(cls.tokens[8], 5);
}

TEST(Pixels, OptionsThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  write_idx_pictures(folder, 30, 5, 4, 3);
  const std::string root = folder.path().string();
  const auto error = [&](const std::string& task, const std::function<void(TrainConfig&)>& change) {
    TrainConfig config = config_of(task, root, 4);
    change(config);
    return message_of<favor::Error>([&] {
      config.check();
      open_task(config, nullptr);
    });
  };
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.data.image_size = 5; }),
            root +
                ": the pictures have 4 x 4 pixels, grey, expected 5 x 5 pixels, grey "
                "(--image-size, --channels)");
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.data.channels = 2; }),
            "channels is 2, expected 1 (grey) or 3 (red, green, blue)");
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.data.channels = 3; }),
            "channels is 3, expected 1 (pictures of " + root + ")");
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.data.image_size = 1; }),
            "image_size is 1, expected 2 to 1024");
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.model.causal = false; }),
            "causal is false, expected true (task pixels)");
  EXPECT_EQ(error("pixels", [](TrainConfig& c) { c.data.windowing = Windowing::kPacked; }),
            "windowing is packed, expected crop or concat (task pixels has one picture a row)");
  EXPECT_EQ(error("picture-classes", [](TrainConfig& c) { c.data.image_size = 3; }),
            "the pictures have 4 x 4 pixels, grey, expected at most 3 x 3 pixels (--image-size)");
  EXPECT_EQ(error("picture-classes", [](TrainConfig& c) { c.data.tile = true; }),
            "tile is true, expected false (task picture-classes)");
  TrainConfig config = config_of("pixels", root, 4);
  config.data.valid_fraction = 0.9999;
  config.data.test_fraction = 0;
  EXPECT_EQ(message_of<std::runtime_error>([&] { open_task(config, nullptr); }),
            root +
                ": all pictures fall to validation and test, expected more pictures or another "
                "split_seed");
  for (const char* name : {"train", "t10k"}) {
    std::filesystem::remove(folder.file(std::string(name) + "-labels-idx1-ubyte"));
  }
  const TrainConfig classes = config_of("picture-classes", root, 4);
  EXPECT_EQ(message_of<std::runtime_error>([&] { open_task(classes, nullptr); }),
            root + ": the pictures are of 0 classes, expected labels of at least 2");
}

}  // namespace
}  // namespace performer
