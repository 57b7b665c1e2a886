// SPDX-License-Identifier: Apache-2.0
// The tasks `pixels` and `picture-classes`: pictures as rows of their values.
#include <utility>

#include "favor/check.h"
#include "performer/data/idx.h"
#include "performer/data/picture_batches.h"
#include "performer/data/picture_files.h"
#include "performer/data/pictures.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

using favor::message;

constexpr int64_t kLargestEdge = 1024;

void check_pictures(const TrainConfig& config) {
  const DataConfig& data = config.data;
  FAVOR_CHECK(data.windowing != Windowing::kPacked,
              "windowing is packed, expected crop or concat (task ", data.task,
              " has one picture a row)");
  FAVOR_CHECK(data.image_size >= 2 && data.image_size <= kLargestEdge, "image_size is ",
              data.image_size, ", expected 2 to ", kLargestEdge);
  FAVOR_CHECK(data.channels == 1 || data.channels == 3, "channels is ", data.channels,
              ", expected 1 (grey) or 3 (red, green, blue)");
}

PictureSplits read_splits(const TrainConfig& config) {
  const DataConfig& data = config.data;
  const SplitOptions options = config.split_options();
  const PictureShape wanted{data.image_size, data.image_size, data.channels};
  PictureSplits splits;
  if (has_idx_pictures(data.data)) {
    FAVOR_CHECK(!data.tile, "tile is true, expected false (pictures of ", data.data, ")");
    splits = read_idx_pictures(data.data, options);
  } else if (has_picture_batches(data.data)) {
    FAVOR_CHECK(!data.tile, "tile is true, expected false (pictures of ", data.data, ")");
    splits = read_picture_batches(data.data, options);
  } else {
    splits = read_picture_folder(data.data, wanted, data.tile, options);
  }
  FAVOR_CHECK(splits.shape.channels == data.channels, "channels is ", data.channels, ", expected ",
              splits.shape.channels, " (pictures of ", data.data, ")");
  if (splits.train->size() == 0) {
    throw std::runtime_error(message(data.data,
                                     ": all pictures fall to validation and test, expected more "
                                     "pictures or another split_seed"));
  }
  return splits;
}

ExampleTask example_task(PictureSplits splits, std::shared_ptr<const Vocabulary> known) {
  ExampleTask task;
  task.vocabulary = known ? std::move(known) : byte_vocabulary();
  task.source = std::move(splits.source);
  return task;
}

int64_t row_length(const DataConfig& data) {
  return data.image_size * data.image_size * data.channels;
}

// The table of axial positions follows the picture.
void fit_positions(TrainConfig& config) {
  ModelConfig& model = config.model;
  model.axial_columns = config.data.image_size;
  model.axial_channels = config.data.channels;
  const int64_t line = model.axial_columns * model.axial_channels;
  model.axial_rows = (config.data.length + line - 1) / line;
}

void set_pictures(TrainConfig& config) {
  config.model.positions = PositionKind::kAxial;
  config.data.windowing = Windowing::kCrop;
  config.data.valid_fraction = 0.05;
  config.data.batch_tokens = 12544;  // 16 pictures of Fashion-MNIST
}

}  // namespace

Task pixels_task() {
  Task task;
  task.name = "pixels";
  task.help = "language model of pictures, value by value";
  task.input = "a folder of IDX files, ImageNet batches, or PNG and JPEG files";
  task.set_defaults = [](TrainConfig& config) {
    set_pictures(config);
    config.data.image_size = 28;
  };
  // A row is a picture: the token before each value.
  task.settle = [](TrainConfig& config) {
    config.data.length = row_length(config.data);
    fit_positions(config);
  };
  task.check = [](const TrainConfig& config) {
    check_pictures(config);
    FAVOR_CHECK(config.model.causal, "causal is false, expected true (task pixels)");
  };
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    PictureSplits splits = read_splits(config);
    const PictureShape wanted{config.data.image_size, config.data.image_size, config.data.channels};
    FAVOR_CHECK(splits.shape == wanted, config.data.data, ": the pictures have ",
                splits.shape.text(), ", expected ", wanted.text(), " (--image-size, --channels)");
    ExampleTask rows = example_task(splits, std::move(known));
    const int64_t begin = rows.vocabulary->bos();
    rows.start_token = begin;
    rows.train = pixel_rows(splits.train, splits.shape, begin);
    rows.valid = pixel_rows(splits.valid, splits.shape, begin);
    rows.test = pixel_rows(splits.test, splits.shape, begin);
    rows.units = [](const ExampleSet&) {
      return std::vector<Unit>{{"bits_per_dim", true, {}, 1}, {"perplexity", false, {}, 1}};
    };
    return open_examples(std::move(rows), config);
  };
  return task;
}

Task picture_classes_task() {
  Task task;
  task.name = "picture-classes";
  task.help = "classify: pictures, value by value";
  task.input = "a folder of IDX files with labels, or ImageNet batches";
  task.head = HeadKind::kClasses;
  task.set_defaults = [](TrainConfig& config) {
    set_pictures(config);
    config.model.causal = false;
    config.model.pooling = PoolingKind::kMean;
    config.run.eval_tokens = 0;
  };
  task.settle = [](TrainConfig& config) {
    config.data.length =
        row_length(config.data) + (config.model.pooling == PoolingKind::kCls ? 1 : 0);
    fit_positions(config);
  };
  task.check = [](const TrainConfig& config) {
    check_pictures(config);
    FAVOR_CHECK(!config.data.tile, "tile is true, expected false (task picture-classes)");
  };
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    PictureSplits splits = read_splits(config);
    if (splits.num_classes < 2) {
      throw std::runtime_error(message(config.data.data, ": the pictures are of ",
                                       splits.num_classes,
                                       " classes, expected labels of at least 2"));
    }
    ExampleTask rows = example_task(splits, std::move(known));
    rows.num_classes = splits.num_classes;
    rows.source += message("; ", splits.num_classes, " classes");
    const int64_t begin = begin_token(config, *byte_vocabulary());
    const auto side = [&](std::shared_ptr<const Pictures> pictures) {
      return picture_rows(std::move(pictures), splits.shape, config.data.image_size, begin);
    };
    rows.train = side(splits.train);
    rows.valid = side(splits.valid);
    rows.test = side(splits.test);
    return open_examples(std::move(rows), config);
  };
  return task;
}

}  // namespace performer
