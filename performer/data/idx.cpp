// SPDX-License-Identifier: Apache-2.0
#include "performer/data/idx.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/byte_source.h"

namespace performer {
namespace {

using favor::message;

// Larger products are no array that could be read.
constexpr int64_t kMostValues = int64_t{1} << 40;

[[noreturn]] void fail(const std::string& path, int64_t byte, const std::string& what) {
  throw std::runtime_error(message(path, ": byte ", byte, ": ", what));
}

uint32_t big_endian(const std::string& bytes, int64_t at) {
  uint32_t value = 0;
  for (int64_t i = 0; i < 4; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes[static_cast<size_t>(at + i)]);
  }
  return value;
}

std::string hexadecimal(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

constexpr const char* kPacked = ".gz";

struct Side {
  PictureShape shape;
  std::shared_ptr<const StoredPictures> pictures;
  std::string images, labels;  // where they come from; no labels: ""
  int64_t num_classes = 0;
};

Side read_side(const std::string& folder, const std::string& name) {
  Side side;
  side.images = need_file(folder, name + "-images-idx3-ubyte", kPacked);
  IdxArray images = read_idx(side.images, 3);
  side.shape = {images.sizes[1], images.sizes[2], 1};
  side.labels = find_file(folder, name + "-labels-idx1-ubyte", kPacked);
  std::vector<uint16_t> labels;
  if (!side.labels.empty()) {
    const IdxArray read = read_idx(side.labels, 1);
    if (read.sizes[0] != images.sizes[0]) {
      fail(side.labels, 4,
           message("has ", read.sizes[0], " labels, expected ", images.sizes[0],
                   " (the pictures of ", side.images, ")"));
    }
    for (const char label : read.values) labels.push_back(static_cast<unsigned char>(label));
    side.num_classes = 1 + *std::max_element(labels.begin(), labels.end());
  }
  side.pictures =
      std::make_shared<StoredPictures>(side.shape, std::move(images.values), std::move(labels));
  return side;
}

}  // namespace

IdxArray read_idx(const std::string& path, int64_t num_sizes) {
  std::string bytes = read_bytes(path);
  const int64_t head = 4 + 4 * num_sizes, size = std::ssize(bytes);
  if (size < head) {
    fail(path, size, message("the file ends, expected a head of ", head, " bytes"));
  }
  const auto magic = static_cast<uint32_t>(0x0800 + num_sizes);
  if (big_endian(bytes, 0) != magic) {
    fail(path, 0,
         message("is ", hexadecimal(big_endian(bytes, 0)), ", expected ", hexadecimal(magic),
                 " (unsigned bytes, ", num_sizes, num_sizes == 1 ? " size)" : " sizes)"));
  }
  IdxArray array;
  int64_t values = 1;
  for (int64_t i = 0; i < num_sizes; ++i) {
    const int64_t at = 4 + 4 * i, one = big_endian(bytes, at);
    if (one < 1 || one > kMostValues / values) {
      fail(path, at,
           message("size ", i + 1, " is ", one, ", expected 1 to ", kMostValues / values));
    }
    array.sizes.push_back(one);
    values *= one;
  }
  if (size != head + values) {
    fail(path, std::min(size, head + values),
         message("the file has ", size, " bytes, expected ", head + values, " (the head of ", head,
                 " and the ", values, " values that it names)"));
  }
  bytes.erase(0, static_cast<size_t>(head));
  array.values = std::move(bytes);
  return array;
}

bool has_idx_pictures(const std::string& folder) {
  return !find_file(folder, "train-images-idx3-ubyte", kPacked).empty();
}

PictureSplits read_idx_pictures(const std::string& folder, const SplitOptions& options) {
  options.check();
  const Side train = read_side(folder, "train"), test = read_side(folder, "t10k");
  if (!(train.shape == test.shape)) {
    fail(test.images, 8,
         message("the pictures have ", test.shape.text(), ", expected ", train.shape.text(),
                 " (as ", train.images, ")"));
  }
  if (train.labels.empty() != test.labels.empty()) {
    throw std::runtime_error(message(folder, ": has labels of one set only (", train.labels,
                                     test.labels, "), expected those of train and t10k or none"));
  }
  for (int64_t i = 0; test.num_classes > train.num_classes && i < test.pictures->size(); ++i) {
    const int64_t label = test.pictures->label(i);
    if (label >= train.num_classes) {
      fail(test.labels, 8 + i,
           message("label is ", label, ", expected 0 to ", train.num_classes - 1,
                   " (the classes of ", train.labels, ")"));
    }
  }
  PictureSplits splits;
  splits.shape = train.shape;
  splits.num_classes = train.num_classes;
  const auto hash = [&](int64_t i) {
    return sequence_hash(train.pictures->bytes(i), options.seed);
  };
  hold_out(train.pictures, options.valid_fraction, hash, splits);
  splits.test = test.pictures;
  splits.source = message(folder, ": IDX, pictures of ", train.shape.text());
  return splits;
}

}  // namespace performer
