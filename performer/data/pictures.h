// SPDX-License-Identifier: Apache-2.0
// Sets of pictures of one size, and the rows of tokens that they become: one token a value, row by
// row, the channels of a pixel side by side.
#ifndef PERFORMER_DATA_PICTURES_H_
#define PERFORMER_DATA_PICTURES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/examples.h"
#include "performer/data/sequences.h"

namespace performer {

struct PictureShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 1;  ///< 1 grey, 3 red, green, blue

  int64_t num_values() const { return height * width * channels; }
  /// "28 x 28 pixels, grey"
  std::string text() const;
  bool operator==(const PictureShape&) const = default;
};

/// Numbered pictures of one size. All functions may be called from any thread.
class Pictures {
 public:
  virtual ~Pictures() = default;
  virtual int64_t size() const = 0;
  /// Writes the values [height, width, channels] of picture i. Throws std::runtime_error naming the
  /// file.
  virtual void read(int64_t i, std::span<uint8_t> values) const = 0;
  /// Its class; -1 = none.
  virtual int64_t label(int64_t i) const = 0;
  /// Hash of the content, not negative: tells whether two runs see the same data.
  virtual int64_t fingerprint() const = 0;
};

/// Pictures in memory.
class StoredPictures : public Pictures {
 public:
  /// `values` [size, height, width, channels]; `labels` [size], or empty.
  StoredPictures(PictureShape shape, std::string values, std::vector<uint16_t> labels);

  int64_t size() const override { return std::ssize(values_) / shape_.num_values(); }
  void read(int64_t i, std::span<uint8_t> values) const override;
  int64_t label(int64_t i) const override;
  int64_t fingerprint() const override;
  std::string_view bytes(int64_t i) const;

 private:
  PictureShape shape_;
  std::string values_;
  std::vector<uint16_t> labels_;
};

/// Some pictures of a set, by their numbers.
std::shared_ptr<const Pictures> choose(std::shared_ptr<const Pictures> pictures,
                                       std::vector<int64_t> numbers);

/// The sets of a data set; valid and test may be empty.
struct PictureSplits {
  PictureShape shape;
  std::shared_ptr<const Pictures> train, valid, test;
  int64_t num_classes = 0;  ///< 0: the pictures have none
  std::string source;       ///< what was read, in words
};

/// The file `name` in `folder`, or the one with `suffix` (".gz") behind; empty where there is
/// neither.
std::string find_file(const std::string& folder, const std::string& name,
                      const std::string& suffix);
/// The same; throws std::runtime_error where there is neither.
std::string need_file(const std::string& folder, const std::string& name,
                      const std::string& suffix);

/// Holds the share `fraction` of `pictures` out of train, for valid, where hash(i) of a picture
/// says so.
template <class Hash>
void hold_out(std::shared_ptr<const Pictures> pictures, double fraction, const Hash& hash,
              PictureSplits& splits) {
  std::vector<int64_t> train, valid;
  for (int64_t i = 0; i < pictures->size(); ++i) {
    (hash_fraction(hash(i)) < fraction ? valid : train).push_back(i);
  }
  splits.train = choose(pictures, std::move(train));
  splits.valid = choose(std::move(pictures), std::move(valid));
}

/// Rows of a language model: the targets are the values of a picture, the tokens `begin` and all
/// values but the last.
std::shared_ptr<const ExampleSet> pixel_rows(std::shared_ptr<const Pictures> pictures,
                                             const PictureShape& shape, int64_t begin);

/// Rows of a classifier: the values of a picture in the middle of a black one of edge x edge
/// pixels, `begin` before them unless that is -1. Throws favor::Error for pictures that are larger.
std::shared_ptr<const ExampleSet> picture_rows(std::shared_ptr<const Pictures> pictures,
                                               const PictureShape& shape, int64_t edge,
                                               int64_t begin);

}  // namespace performer

#endif  // PERFORMER_DATA_PICTURES_H_
