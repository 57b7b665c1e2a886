// SPDX-License-Identifier: Apache-2.0
// Pathfinder as the Long Range Arena's files hold it.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/byte_source.h"
#include "performer/data/pathfinder.h"
#include "performer/data/png.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

struct Entry {
  std::string path;
  bool connected = false;
};

class FileSet : public ExampleSet {
 public:
  FileSet(std::vector<Entry> entries, int64_t edge, int64_t begin)
      : entries_(std::move(entries)), edge_(edge), begin_(begin) {}
  int64_t size() const override { return std::ssize(entries_); }
  int64_t length(int64_t) const override { return edge_ * edge_ + (begin_ >= 0 ? 1 : 0); }
  Example example(int64_t i, int64_t) const override {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    const Picture picture = read_png(entry.path, 1);
    if (picture.width != edge_ || picture.height != edge_) {
      throw std::runtime_error(message(entry.path, ": is ", picture.width, " x ", picture.height,
                                       " pixels, expected ", edge_, " x ", edge_,
                                       " (--image-size)"));
    }
    Example example;
    if (begin_ >= 0) example.tokens.push_back(begin_);
    example.tokens.insert(example.tokens.end(), picture.pixels.begin(), picture.pixels.end());
    example.label = entry.connected ? 1 : 0;
    return example;
  }
  int64_t fingerprint() const override {
    uint64_t hash = static_cast<uint64_t>(size());
    for (const Entry& entry : entries_) {
      const std::string name = fs::path(entry.path).filename().string();
      hash = sequence_hash(name, hash + (entry.connected ? 1 : 0));
    }
    return static_cast<int64_t>(hash >> 1);
  }

 private:
  std::vector<Entry> entries_;
  int64_t edge_;
  int64_t begin_;
};

// Metadata files by their numbers.
std::vector<std::pair<int64_t, fs::path>> metadata_files(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> files;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    const std::string stem = entry.path().stem().string();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), number);
    if (entry.path().extension() == ".npy" && error == std::errc() &&
        end == stem.data() + stem.size()) {
      files.emplace_back(number, entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

PathfinderSplits read_pathfinder(const std::string& folder, int64_t size, int64_t begin) {
  const fs::path root = folder;
  const auto files = metadata_files(root / "metadata");
  if (files.empty()) {
    throw std::runtime_error(message((root / "metadata").string(),
                                     ": holds no file named <number>.npy, expected at least one"));
  }
  std::vector<Entry> entries;
  for (const auto& [number, path] : files) {
    std::istringstream lines(read_bytes(path.string()));
    int64_t line_number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++line_number;
      std::istringstream words(line);
      std::string part, name, index, label;
      words >> part >> name >> index >> label;
      if (part.empty()) continue;
      if (label != "0" && label != "1") {
        throw std::runtime_error(message(path.string(), ":", line_number, ": is '",
                                         line.substr(0, 60),
                                         "', expected: folder, name.png, number, 0 or 1, ..."));
      }
      entries.push_back({(root / part / name).string(), label == "1"});
    }
  }
  if (entries.size() < 10) {
    throw std::runtime_error(message((root / "metadata").string(), ": lists ", entries.size(),
                                     " pictures, expected at least 10"));
  }
  const size_t eight = entries.size() * 8 / 10, nine = entries.size() * 9 / 10;
  const auto part = [&](size_t from, size_t to) {
    return std::make_shared<FileSet>(std::vector<Entry>(entries.begin() + static_cast<long>(from),
                                                        entries.begin() + static_cast<long>(to)),
                                     size, begin);
  };
  return {part(0, eight), part(eight, nine), part(nine, entries.size())};
}

}  // namespace performer
