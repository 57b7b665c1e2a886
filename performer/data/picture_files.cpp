// SPDX-License-Identifier: Apache-2.0
#include "performer/data/picture_files.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/jpeg.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

bool is_png(const fs::path& path) {
  return lower_extension(path) == ".png";
}

bool is_jpeg(const fs::path& path) {
  return lower_extension(path) == ".jpg" || lower_extension(path) == ".jpeg";
}

// Names below `folder`, in ascending order.
std::vector<std::string> picture_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && (is_png(entry.path()) || is_jpeg(entry.path()))) {
      names.push_back(entry.path().lexically_relative(folder).string());
    }
  }
  if (names.empty()) {
    throw std::runtime_error(message(
        folder.string(), ": holds no file named .png, .jpg or .jpeg, expected at least one"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

class FilePictures : public Pictures {
 public:
  FilePictures(fs::path folder, std::vector<std::string> names, const PictureShape& shape)
      : folder_(std::move(folder)), names_(std::move(names)), shape_(shape) {
    // A wrong size shows before a run begins, of one file at least.
    std::vector<uint8_t> values(static_cast<size_t>(shape_.num_values()));
    if (!names_.empty()) read(0, values);
  }
  int64_t size() const override { return std::ssize(names_); }
  void read(int64_t i, std::span<uint8_t> values) const override {
    const std::string path = (folder_ / names_[static_cast<size_t>(i)]).string();
    const Picture picture = read_picture(path, shape_.channels);
    if (picture.width != shape_.width || picture.height != shape_.height) {
      throw std::runtime_error(message(path, ": is ", picture.height, " x ", picture.width,
                                       " pixels, expected ", shape_.height, " x ", shape_.width,
                                       " (--image-size; --tile cuts larger ones)"));
    }
    std::copy(picture.pixels.begin(), picture.pixels.end(), values.begin());
  }
  int64_t label(int64_t) const override { return -1; }
  int64_t fingerprint() const override {
    uint64_t hash = static_cast<uint64_t>(size());
    for (const std::string& name : names_) hash = sequence_hash(name, hash);
    return static_cast<int64_t>(hash >> 1);
  }

 private:
  fs::path folder_;
  std::vector<std::string> names_;  // below the folder
  PictureShape shape_;
};

// Appends the tiles of a picture, row by row.
int64_t cut_tiles(const Picture& picture, const PictureShape& shape, std::string& values) {
  const int64_t down = picture.height / shape.height, across = picture.width / shape.width;
  const int64_t line = shape.width * shape.channels;
  const auto* pixels = reinterpret_cast<const char*>(picture.pixels.data());
  for (int64_t tile = 0; tile < down * across; ++tile) {
    const int64_t top = tile / across * shape.height, left = tile % across * shape.width;
    for (int64_t row = top; row < top + shape.height; ++row) {
      values.append(pixels + (row * picture.width + left) * shape.channels,
                    static_cast<size_t>(line));
    }
  }
  return down * across;
}

// What reads the files of one set.
class Opener {
 public:
  Opener(const PictureShape& shape, bool tile) : shape_(shape), tile_(tile) {}

  std::shared_ptr<const Pictures> open(const fs::path& folder, std::vector<std::string> names) {
    num_files_ += std::ssize(names);
    if (!tile_) return std::make_shared<FilePictures>(folder, std::move(names), shape_);
    std::string values;
    for (const std::string& name : names) {
      const Picture picture = read_picture((folder / name).string(), shape_.channels);
      const int64_t tiles = cut_tiles(picture, shape_, values);
      num_tiles_ += tiles;
      too_small_ += tiles == 0 ? 1 : 0;
    }
    return std::make_shared<StoredPictures>(shape_, std::move(values), std::vector<uint16_t>());
  }

  std::string text() const {
    std::string text = message(num_files_, num_files_ == 1 ? " file, " : " files, ");
    if (tile_) text += message(num_tiles_, " tiles of ");
    text += shape_.text();
    if (too_small_ > 0) text += message("; ", too_small_, " files smaller than a tile left out");
    return text;
  }

 private:
  PictureShape shape_;
  bool tile_;
  int64_t num_files_ = 0, num_tiles_ = 0, too_small_ = 0;
};

// <root>/side or <root>/side_NxN; empty where there is neither.
fs::path side_folder(const fs::path& root, const std::string& side, const PictureShape& shape) {
  for (const std::string& name : {side, message(side, "_", shape.width, "x", shape.height)}) {
    if (fs::is_directory(root / name)) return root / name;
  }
  return {};
}

// So many of `count` files: none of none, or at least one.
int64_t share_of(int64_t count, double fraction) {
  return fraction <= 0 ? 0 : std::max<int64_t>(1, std::llround(fraction * double(count)));
}

// Moves `count` names from the end, or all there are.
std::vector<std::string> take_last(std::vector<std::string>& names, int64_t count) {
  count = std::min(count, std::ssize(names));
  std::vector<std::string> taken(names.end() - count, names.end());
  names.resize(names.size() - static_cast<size_t>(count));
  std::sort(taken.begin(), taken.end());
  return taken;
}

}  // namespace

Picture read_picture(const std::string& path, int64_t channels) {
  if (is_png(path)) return read_png(path, channels);
  if (is_jpeg(path)) return read_jpeg(path, channels);
  throw std::runtime_error(message(path, ": is named '", fs::path(path).extension().string(),
                                   "', expected .png, .jpg or .jpeg"));
}

PictureSplits read_picture_folder(const std::string& folder, const PictureShape& shape, bool tile,
                                  const SplitOptions& options) {
  options.check();
  const fs::path root = folder;
  if (!fs::is_directory(root)) {
    throw std::runtime_error(message(folder, ": is no folder, expected one of pictures"));
  }
  Opener opener(shape, tile);
  PictureSplits splits;
  splits.shape = shape;
  const fs::path own = side_folder(root, "train", shape);
  std::vector<std::string> train = picture_names(own.empty() ? root : own);
  const auto by_hash = [&](const std::string& a, const std::string& b) {
    return sequence_hash(a, options.seed) < sequence_hash(b, options.seed);
  };
  std::stable_sort(train.begin(), train.end(), by_hash);
  const auto open_side = [&](const char* side, double fraction) {
    const fs::path given = own.empty() ? fs::path() : side_folder(root, side, shape);
    if (!given.empty()) return opener.open(given, picture_names(given));
    return opener.open(own.empty() ? root : own,
                       take_last(train, share_of(std::ssize(train), fraction)));
  };
  const auto num_files = std::ssize(train);
  splits.valid = open_side("valid", options.valid_fraction);
  splits.test = open_side("test", own.empty() ? options.test_fraction : 0);
  if (train.empty()) {
    throw std::runtime_error(message(folder, ": holds ", num_files,
                                     " pictures, expected more than validation and test take"));
  }
  std::sort(train.begin(), train.end());
  splits.train = opener.open(own.empty() ? root : own, std::move(train));
  if (tile && splits.train->size() == 0) {
    throw std::runtime_error(message(folder, ": no picture to train on holds a tile of ",
                                     shape.height, " x ", shape.width,
                                     " pixels, expected at least one"));
  }
  splits.source = message(folder, ": ", opener.text());
  return splits;
}

}  // namespace performer
