// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_batches.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/npy.h"
#include "performer/data/pickle.h"

namespace performer {
namespace {

using favor::message;

constexpr int64_t kMostClasses = 65535;

constexpr const char* kPacked = ".npz";

struct PictureBatch {
  NpyArray data;  // uint8 [N, 3 edge edge]
  std::vector<uint16_t> labels;
  int64_t edge = 0;

  int64_t size() const { return data.shape[0]; }
};

const PickleValue& value_of(const Pickle& pickle, const std::string& path, const char* key) {
  const PickleValue* value = pickle.root->find(key);
  if (value == nullptr) {
    throw std::runtime_error(message(path, ": has no '", key, "', expected a dictionary with it"));
  }
  return *value;
}

std::vector<int64_t> whole_numbers(const PickleValue& value,
                                   const std::shared_ptr<const MappedFile>& file,
                                   const std::string& place) {
  if (value.kind != PickleValue::Kind::kList) return array_of(value, file, place).whole_numbers();
  std::vector<int64_t> numbers;
  for (const PickleValue* item : value.items) {
    if (item->kind != PickleValue::Kind::kInteger) {
      throw std::runtime_error(
          message(place, ": item ", numbers.size(), " is no whole number, expected one"));
    }
    numbers.push_back(item->integer);
  }
  return numbers;
}

PictureBatch read_batch(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  PictureBatch batch;
  std::vector<int64_t> labels;
  const std::string of_labels = path + ": labels";
  if (path.ends_with(".npz")) {
    batch.data = read_npz(file, "data");
    labels = read_npz(file, "labels").whole_numbers();
  } else {
    const Pickle pickle = read_pickle(file);
    batch.data = array_of(value_of(pickle, path, "data"), file, path + ": data");
    labels = whole_numbers(value_of(pickle, path, "labels"), file, of_labels);
  }
  std::string shape;
  for (const int64_t size : batch.data.shape) shape += message(shape.empty() ? "" : ", ", size);
  const int64_t values = batch.data.shape.empty() ? 0 : batch.data.shape.back();
  batch.edge = std::llround(std::sqrt(double(values) / 3));
  if (batch.data.type != "|u1" || batch.data.shape.size() != 2 || batch.size() < 1 ||
      batch.edge < 1 || 3 * batch.edge * batch.edge != values) {
    throw std::runtime_error(message(path, ": data is ", batch.data.type, " (", shape,
                                     "), expected |u1 (N, 3 x edge x edge)"));
  }
  if (std::ssize(labels) != batch.size()) {
    throw std::runtime_error(message(of_labels, ": there are ", labels.size(), ", expected ",
                                     batch.size(), " (one a picture)"));
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 1 || labels[i] > kMostClasses) {
      throw std::runtime_error(
          message(of_labels, ": label ", i, " is ", labels[i], ", expected 1 to ", kMostClasses));
    }
    batch.labels.push_back(static_cast<uint16_t>(labels[i] - 1));
  }
  return batch;
}

class BatchPictures : public Pictures {
 public:
  explicit BatchPictures(std::vector<PictureBatch> batches) : batches_(std::move(batches)) {
    for (const PictureBatch& batch : batches_) ends_.push_back(size() + batch.size());
  }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t i, std::span<uint8_t> values) const override {
    const auto [batch, at] = place_of(i);
    const int64_t plane = batch.edge * batch.edge;
    const uint8_t* planes = batch.data.bytes.data() + at * 3 * plane;
    for (int64_t pixel = 0; pixel < plane; ++pixel) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        values[static_cast<size_t>(3 * pixel + channel)] = planes[channel * plane + pixel];
      }
    }
  }
  int64_t label(int64_t i) const override {
    const auto [batch, at] = place_of(i);
    return batch.labels[static_cast<size_t>(at)];
  }
  // Of labels and some pictures: a hash of all would read the whole files at every start.
  int64_t fingerprint() const override {
    uint64_t hash = static_cast<uint64_t>(size());
    constexpr int64_t kSome = 64;
    for (const PictureBatch& batch : batches_) {
      const std::string_view labels(reinterpret_cast<const char*>(batch.labels.data()),
                                    batch.labels.size() * sizeof(uint16_t));
      hash = sequence_hash(labels, hash);
      const int64_t each = 3 * batch.edge * batch.edge, count = std::min(kSome, batch.size());
      for (int64_t j = 0; j < count; ++j) {
        const auto* picture = reinterpret_cast<const char*>(batch.data.bytes.data()) +
                              batch.size() * j / count * each;
        hash = sequence_hash({picture, static_cast<size_t>(each)}, hash);
      }
    }
    return static_cast<int64_t>(hash >> 1);
  }
  int64_t num_classes() const {
    int64_t largest = 0;
    for (const PictureBatch& batch : batches_) {
      largest =
          std::max<int64_t>(largest, *std::max_element(batch.labels.begin(), batch.labels.end()));
    }
    return largest + 1;
  }

 private:
  std::pair<const PictureBatch&, int64_t> place_of(int64_t i) const {
    const auto at = std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin();
    return {batches_[static_cast<size_t>(at)],
            at == 0 ? i : i - ends_[static_cast<size_t>(at) - 1]};
  }

  std::vector<PictureBatch> batches_;
  std::vector<int64_t> ends_;  // of each batch, counted over all
};

}  // namespace

bool has_picture_batches(const std::string& folder) {
  return !find_file(folder, "train_data_batch_1", kPacked).empty();
}

PictureSplits read_picture_batches(const std::string& folder, const SplitOptions& options) {
  options.check();
  std::vector<PictureBatch> batches, test_batch;
  int64_t edge = 0;
  const auto add = [&](const std::string& path, std::vector<PictureBatch>& to) {
    to.push_back(read_batch(path));
    if (edge == 0) edge = to.back().edge;
    if (to.back().edge != edge) {
      throw std::runtime_error(message(path, ": the pictures have ", to.back().edge, " x ",
                                       to.back().edge, " pixels, expected ", edge, " x ", edge,
                                       " (as the first batch)"));
    }
  };
  std::string path = need_file(folder, "train_data_batch_1", kPacked);
  for (int64_t number = 2; !path.empty(); ++number) {
    add(path, batches);
    path = find_file(folder, message("train_data_batch_", number), kPacked);
  }
  add(need_file(folder, "val_data", kPacked), test_batch);
  const size_t num_batches = batches.size();
  const auto train = std::make_shared<BatchPictures>(std::move(batches));
  const auto test = std::make_shared<BatchPictures>(std::move(test_batch));
  PictureSplits splits;
  splits.shape = {edge, edge, 3};
  splits.num_classes = std::max(train->num_classes(), test->num_classes());
  const auto hash = [&](int64_t i) {
    return sequence_hash("performer/pictures",
                         options.seed + static_cast<uint64_t>(i) * uint64_t{0x9e3779b97f4a7c15});
  };
  hold_out(train, options.valid_fraction, hash, splits);
  splits.test = test;
  splits.source = message(folder, ": ", num_batches, num_batches == 1 ? " batch" : " batches",
                          " and val_data, pictures of ", splits.shape.text());
  return splits;
}

}  // namespace performer
