// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pictures.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "favor/check.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

class ChosenPictures : public Pictures {
 public:
  ChosenPictures(std::shared_ptr<const Pictures> pictures, std::vector<int64_t> numbers)
      : pictures_(std::move(pictures)), numbers_(std::move(numbers)) {}
  int64_t size() const override { return std::ssize(numbers_); }
  void read(int64_t i, std::span<uint8_t> values) const override {
    pictures_->read(numbers_[static_cast<size_t>(i)], values);
  }
  int64_t label(int64_t i) const override {
    return pictures_->label(numbers_[static_cast<size_t>(i)]);
  }
  int64_t fingerprint() const override {
    const std::string_view numbers(reinterpret_cast<const char*>(numbers_.data()),
                                   numbers_.size() * sizeof(int64_t));
    const auto content = static_cast<uint64_t>(pictures_->fingerprint());
    return static_cast<int64_t>(sequence_hash(numbers, content) >> 1);
  }

 private:
  std::shared_ptr<const Pictures> pictures_;
  std::vector<int64_t> numbers_;
};

class PixelRows : public ExampleSet {
 public:
  PixelRows(std::shared_ptr<const Pictures> pictures, const PictureShape& shape, int64_t begin)
      : pictures_(std::move(pictures)), num_values_(shape.num_values()), begin_(begin) {}
  int64_t size() const override { return pictures_->size(); }
  int64_t length(int64_t) const override { return num_values_; }
  Example example(int64_t i, int64_t) const override {
    std::vector<uint8_t> values(static_cast<size_t>(num_values_));
    pictures_->read(i, values);
    Example example;
    example.targets.assign(values.begin(), values.end());
    example.tokens.push_back(begin_);
    example.tokens.insert(example.tokens.end(), values.begin(), values.end() - 1);
    return example;
  }
  int64_t fingerprint() const override { return pictures_->fingerprint(); }

 private:
  std::shared_ptr<const Pictures> pictures_;
  int64_t num_values_;
  int64_t begin_;
};

class PictureRows : public ExampleSet {
 public:
  PictureRows(std::shared_ptr<const Pictures> pictures, const PictureShape& shape, int64_t edge,
              int64_t begin)
      : pictures_(std::move(pictures)), shape_(shape), edge_(edge), begin_(begin) {
    FAVOR_CHECK(shape.height <= edge && shape.width <= edge, "the pictures have ", shape.text(),
                ", expected at most ", edge, " x ", edge, " pixels (--image-size)");
  }
  int64_t size() const override { return pictures_->size(); }
  int64_t length(int64_t) const override {
    return edge_ * edge_ * shape_.channels + (begin_ >= 0 ? 1 : 0);
  }
  Example example(int64_t i, int64_t) const override {
    std::vector<uint8_t> values(static_cast<size_t>(shape_.num_values()));
    pictures_->read(i, values);
    Example example;
    example.label = pictures_->label(i);
    example.tokens.assign(static_cast<size_t>(length(i)), 0);
    auto out = example.tokens.begin();
    if (begin_ >= 0) *out++ = begin_;
    const int64_t line = shape_.width * shape_.channels;
    const int64_t top = (edge_ - shape_.height) / 2, left = (edge_ - shape_.width) / 2;
    for (int64_t row = 0; row < shape_.height; ++row) {
      std::copy_n(values.begin() + row * line, line,
                  out + ((top + row) * edge_ + left) * shape_.channels);
    }
    return example;
  }
  int64_t fingerprint() const override {
    uint64_t hash = sequence_hash(
        "", static_cast<uint64_t>(pictures_->fingerprint()) ^ static_cast<uint64_t>(edge_));
    for (int64_t i = 0; i < size(); ++i) {
      hash = sequence_hash("", hash ^ static_cast<uint64_t>(pictures_->label(i)));
    }
    return static_cast<int64_t>(hash >> 1);
  }

 private:
  std::shared_ptr<const Pictures> pictures_;
  PictureShape shape_;
  int64_t edge_;
  int64_t begin_;
};

}  // namespace

std::string PictureShape::text() const {
  return message(height, " x ", width, " pixels, ", channels == 1 ? "grey" : "in colour");
}

StoredPictures::StoredPictures(PictureShape shape, std::string values, std::vector<uint16_t> labels)
    : shape_(shape), values_(std::move(values)), labels_(std::move(labels)) {
  const int64_t each = shape.num_values();
  FAVOR_CHECK(each > 0 && std::ssize(values_) % each == 0, "pictures: there are ", values_.size(),
              " bytes, expected a multiple of ", each);
  FAVOR_CHECK(labels_.empty() || std::ssize(labels_) == size(), "pictures: there are ",
              labels_.size(), " labels, expected 0 or ", size());
}

std::string_view StoredPictures::bytes(int64_t i) const {
  const auto each = static_cast<size_t>(shape_.num_values());
  return std::string_view(values_).substr(static_cast<size_t>(i) * each, each);
}

void StoredPictures::read(int64_t i, std::span<uint8_t> values) const {
  const std::string_view picture = bytes(i);
  std::copy(picture.begin(), picture.end(), values.begin());
}

int64_t StoredPictures::label(int64_t i) const {
  return labels_.empty() ? -1 : labels_[static_cast<size_t>(i)];
}

int64_t StoredPictures::fingerprint() const {
  return static_cast<int64_t>(sequence_hash(values_, static_cast<uint64_t>(size())) >> 1);
}

std::string find_file(const std::string& folder, const std::string& name,
                      const std::string& suffix) {
  const std::string plain = (fs::path(folder) / name).string();
  for (const std::string& path : {plain, plain + suffix}) {
    if (fs::is_regular_file(path)) return path;
  }
  return "";
}

std::string need_file(const std::string& folder, const std::string& name,
                      const std::string& suffix) {
  const std::string path = find_file(folder, name, suffix);
  if (!path.empty()) return path;
  throw std::runtime_error(
      message(folder, ": has no file ", name, " (", suffix, " or not), expected one"));
}

std::shared_ptr<const Pictures> choose(std::shared_ptr<const Pictures> pictures,
                                       std::vector<int64_t> numbers) {
  return std::make_shared<ChosenPictures>(std::move(pictures), std::move(numbers));
}

std::shared_ptr<const ExampleSet> pixel_rows(std::shared_ptr<const Pictures> pictures,
                                             const PictureShape& shape, int64_t begin) {
  return std::make_shared<PixelRows>(std::move(pictures), shape, begin);
}

std::shared_ptr<const ExampleSet> picture_rows(std::shared_ptr<const Pictures> pictures,
                                               const PictureShape& shape, int64_t edge,
                                               int64_t begin) {
  return std::make_shared<PictureRows>(std::move(pictures), shape, edge, begin);
}

}  // namespace performer
