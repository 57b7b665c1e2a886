// SPDX-License-Identifier: Apache-2.0
#include "performer/data/labelled.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/byte_source.h"
#include "performer/data/listops.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// As far as a message shows it.
std::string shown(std::string_view text) {
  std::string cut = "'";
  for (const char c : text.substr(0, 30)) cut += (c >= ' ' && c <= '~') ? c : '?';
  return cut + (text.size() > 30 ? "...'" : "'");
}

[[noreturn]] void fail(const std::string& path, int64_t line, const std::string& what) {
  throw std::runtime_error(message(path, ":", line, ": ", what));
}

// Calls use(line, number) for every line of a file, without its line end.
void each_line(const std::string& path,
               const std::function<void(std::string_view line, int64_t number)>& use) {
  const std::string content = read_bytes(path);
  const std::string_view text = content;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    use(line, ++number);
    at = end + 1;
  }
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find('\t', at), line.size());
    fields.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

LabelledSplits empty_splits(int64_t length, int64_t begin) {
  LabelledSplits splits;
  for (auto* set : {&splits.train, &splits.valid, &splits.test}) {
    *set = std::make_shared<LabelledSet>(length, begin);
  }
  return splits;
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_document(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".txt") || name.ends_with(".txt.gz");
}

}  // namespace

void LabelledSet::append(std::span<const uint8_t> tokens) {
  const auto room = static_cast<size_t>(length_ - (begin_ >= 0 ? 1 : 0));
  num_cut_ += tokens.size() > room;
  tokens = tokens.first(std::min(tokens.size(), room));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  offsets_.push_back(std::ssize(tokens_));
}

void LabelledSet::add(std::span<const uint8_t> tokens, int64_t label) {
  FAVOR_CHECK(!pairs_, "the set holds pairs, expected another pair");
  append(tokens);
  labels_.push_back(static_cast<uint8_t>(label));
}

void LabelledSet::add(std::span<const uint8_t> tokens, std::span<const uint8_t> second,
                      int64_t label) {
  FAVOR_CHECK(pairs_ || labels_.empty(), "the set holds rows, expected another row");
  pairs_ = true;
  append(tokens);
  append(second);
  labels_.push_back(static_cast<uint8_t>(label));
}

int64_t LabelledSet::row_length(int64_t number) const {
  const auto at = static_cast<size_t>(number);
  return std::max<int64_t>(offsets_[at + 1] - offsets_[at] + (begin_ >= 0 ? 1 : 0), 1);
}

int64_t LabelledSet::length(int64_t i) const {
  return pairs_ ? std::max(row_length(2 * i), row_length(2 * i + 1)) : row_length(i);
}

std::vector<int64_t> LabelledSet::row(int64_t number) const {
  const auto at = static_cast<size_t>(number);
  std::vector<int64_t> row;
  if (begin_ >= 0) row.push_back(begin_);
  row.insert(row.end(), tokens_.begin() + offsets_[at], tokens_.begin() + offsets_[at + 1]);
  // A model sees at least one token of an empty text.
  if (row.empty()) row.push_back(0);
  return row;
}

Example LabelledSet::example(int64_t i, int64_t) const {
  Example example;
  example.label = labels_[static_cast<size_t>(i)];
  example.tokens = row(pairs_ ? 2 * i : i);
  if (pairs_) example.second = row(2 * i + 1);
  return example;
}

int64_t LabelledSet::fingerprint() const {
  const auto text = [](const std::vector<uint8_t>& bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  uint64_t hash = sequence_hash(text(tokens_), static_cast<uint64_t>(std::ssize(offsets_)));
  hash = sequence_hash(text(labels_), hash);
  for (const int64_t offset : offsets_) hash = sequence_hash("", hash ^ uint64_t(offset));
  return static_cast<int64_t>(hash >> 1);
}

std::string LabelledSplits::cut_summary(int64_t length) const {
  const int64_t cut = train->num_cut() + valid->num_cut() + test->num_cut();
  return cut == 0 ? "" : message(cut, " rows cut to length ", length);
}

LabelledSplits read_listops(const std::string& folder, int64_t length, int64_t begin) {
  LabelledSplits splits = empty_splits(length, begin);
  for (int digit = 0; digit < 10; ++digit) splits.classes.push_back(std::to_string(digit));
  const std::pair<const char*, LabelledSet*> files[] = {{"basic_train.tsv", splits.train.get()},
                                                        {"basic_val.tsv", splits.valid.get()},
                                                        {"basic_test.tsv", splits.test.get()}};
  const auto vocabulary = listops_vocabulary();
  for (const auto& [name, set] : files) {
    const std::string path = (fs::path(folder) / name).string();
    int64_t lines = 0;
    each_line(path, [&, set = set](std::string_view line, int64_t number) {
      ++lines;
      if (number == 1) {
        if (line != "Source\tTarget") {
          fail(path, number, "is " + shown(line) + ", expected the columns Source and Target");
        }
        return;
      }
      const std::vector<std::string_view> fields = fields_of(line);
      if (fields.size() != 2) {
        fail(path, number, message("has ", fields.size(), " fields, expected 2 (Source, Target)"));
      }
      if (fields[1].size() != 1 || fields[1][0] < '0' || fields[1][0] > '9') {
        fail(path, number, "Target is " + shown(fields[1]) + ", expected a digit");
      }
      std::string plain(fields[0]);
      for (char& c : plain) c = c == '(' || c == ')' ? ' ' : c;
      try {
        const std::vector<int64_t> ids = vocabulary->encode(plain);
        set->add(std::vector<uint8_t>(ids.begin(), ids.end()), fields[1][0] - '0');
      } catch (const favor::Error& error) {
        fail(path, number, error.what());
      }
    });
    if (lines < 2) throw std::runtime_error(message(path, ": holds no row, expected at least one"));
  }
  return splits;
}

LabelledSplits read_pairs(const std::string& folder, int64_t length, int64_t begin) {
  LabelledSplits splits = empty_splits(length, begin);
  splits.classes = {"0", "1"};
  const std::pair<const char*, LabelledSet*> files[] = {
      {"new_aan_pairs.train.tsv", splits.train.get()},
      {"new_aan_pairs.eval.tsv", splits.valid.get()},
      {"new_aan_pairs.test.tsv", splits.test.get()}};
  for (const auto& [name, set] : files) {
    const std::string path = (fs::path(folder) / name).string();
    each_line(path, [&, set = set](std::string_view line, int64_t number) {
      const std::vector<std::string_view> fields = fields_of(line);
      if (fields.size() != 5) {
        fail(path, number,
             message("has ", fields.size(), " fields, expected 5 (label id1 id2 text1 text2)"));
      }
      // Written as 0 and 1, or as 0.0 and 1.0.
      const std::string_view label = fields[0];
      if (label != "0" && label != "1" && label != "0.0" && label != "1.0") {
        fail(path, number, "label is " + shown(label) + ", expected 0 or 1");
      }
      set->add(bytes_of(fields[3]), bytes_of(fields[4]), label[0] - '0');
    });
    if (set->size() == 0) {
      throw std::runtime_error(message(path, ": holds no pair, expected at least one"));
    }
  }
  return splits;
}

LabelledSplits read_documents(const std::string& folder, int64_t length, int64_t begin,
                              const SplitOptions& options) {
  options.check();
  LabelledSplits splits = empty_splits(length, begin);
  const fs::path root = folder;
  for (const fs::path& entry : sorted_entries(root / "train")) {
    const std::string name = entry.filename().string();
    if (fs::is_directory(entry) && fs::is_directory(root / "test" / name)) {
      splits.classes.push_back(name);
    }
  }
  if (splits.classes.size() < 2 || splits.classes.size() > 256) {
    throw std::runtime_error(message(folder, ": has ", splits.classes.size(),
                                     " classes, expected 2 to 256 (folders that lie both in train "
                                     "and in test)"));
  }
  const bool has_valid = fs::is_directory(root / "valid");
  const auto read = [&](const char* side, LabelledSet& set) {
    for (size_t label = 0; label < splits.classes.size(); ++label) {
      for (const fs::path& path : sorted_entries(root / side / splits.classes[label])) {
        if (!is_document(path)) continue;
        const std::string text = read_bytes(path.string());
        const bool held_out =
            &set == splits.train.get() && !has_valid &&
            hash_fraction(sequence_hash(text, options.seed)) < options.valid_fraction;
        (held_out ? *splits.valid : set).add(bytes_of(text), static_cast<int64_t>(label));
      }
    }
    if (set.size() == 0) {
      throw std::runtime_error(message((root / side).string(),
                                       ": holds no .txt file in the folders of its classes, "
                                       "expected at least one"));
    }
  };
  read("train", *splits.train);
  if (has_valid) read("valid", *splits.valid);
  read("test", *splits.test);
  return splits;
}

}  // namespace performer
