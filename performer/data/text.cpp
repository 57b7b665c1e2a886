// SPDX-License-Identifier: Apache-2.0
#include "performer/data/text.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/byte_source.h"
#include "performer/data/rows.h"
#include "performer/data/utf8.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

bool is_text_name(std::string name) {
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name.ends_with(".txt") || name.ends_with(".md") || name.ends_with(".rst");
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

favor::RandomStream stream_of(uint64_t seed, int64_t item, int64_t epoch) {
  return {sequence_hash("performer/text", seed), static_cast<uint64_t>(item),
          static_cast<uint32_t>(epoch)};
}

}  // namespace

std::vector<TextFile> read_text_files(const std::string& path) {
  std::vector<std::string> paths;
  if (path != "-" && fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && is_text_name(entry.path().filename().string())) {
        paths.push_back(entry.path().string());
      }
    }
    if (paths.empty()) {
      throw std::runtime_error(
          message(path, ": holds no .txt, .md or .rst file (.gz or not), expected at least one"));
    }
    std::sort(paths.begin(), paths.end());
  } else {
    paths.push_back(path);
  }
  std::vector<TextFile> files;
  for (const std::string& one : paths) {
    TextFile file{one == "-" ? "standard input" : one, read_bytes(one)};
    if (!file.text.empty()) files.push_back(std::move(file));
  }
  if (files.empty()) {
    throw std::runtime_error(message(path, ": is empty, expected at least one byte of text"));
  }
  return files;
}

std::string TextRepair::summary() const {
  if (sequences == 0) return "";
  return message(sequences, " invalid UTF-8 sequences in ", files,
                 " files made U+FFFD (first: ", first_place, ")");
}

TextRepair repair(std::vector<TextFile>& files) {
  TextRepair result;
  for (TextFile& file : files) {
    const Utf8Damage damage = repair_utf8(file.text);
    if (damage.count == 0) continue;
    if (result.files++ == 0) result.first_place = message(file.path, ": byte ", damage.first);
    result.sequences += damage.count;
  }
  return result;
}

TextSplits split_text(const std::vector<TextFile>& files, const SplitOptions& options,
                      int64_t block_bytes) {
  options.check();
  TextSplits splits;
  for (const TextFile& file : files) {
    const std::string_view text = file.text;
    int last_side = -1;
    for (size_t begin = 0; begin < text.size();) {
      const size_t least = begin + static_cast<size_t>(block_bytes) - 1;
      size_t end = least < text.size() ? text.find('\n', least) : std::string_view::npos;
      end = end == std::string_view::npos ? text.size() : end + 1;
      const std::string_view block = text.substr(begin, end - begin);
      const int side = static_cast<int>(split_of(block, options));
      std::vector<std::string_view>& sections = splits.sections[static_cast<size_t>(side)];
      if (side == last_side) {
        sections.back() = {sections.back().data(), sections.back().size() + block.size()};
      } else {
        sections.push_back(block);
      }
      last_side = side;
      begin = end;
    }
  }
  return splits;
}

TokenStream encode_text(const std::vector<std::string_view>& sections,
                        const Vocabulary& vocabulary) {
  constexpr int64_t kMost = int64_t{std::numeric_limits<uint16_t>::max()} + 1;
  FAVOR_CHECK(vocabulary.size() <= kMost, "the vocabulary has ", vocabulary.size(),
              " tokens, expected at most ", kMost);
  TokenStream stream;
  const auto end = static_cast<uint16_t>(vocabulary.eos());
  if (!sections.empty()) stream.tokens.push_back(end);
  for (const std::string_view section : sections) {
    // Line by line, or rather by blocks: what an encoder holds at once stays small.
    for (size_t begin = 0; begin < section.size();) {
      const size_t line = section.find('\n', begin + kTextBlockBytes);
      const size_t stop = line == std::string_view::npos ? section.size() : line + 1;
      for (const int64_t id : vocabulary.encode(section.substr(begin, stop - begin))) {
        stream.tokens.push_back(static_cast<uint16_t>(id));
      }
      begin = stop;
    }
    stream.tokens.push_back(end);
    stream.bytes += std::ssize(section);
    bool in_word = false;
    for (const char c : section) {
      stream.words += !is_space(c) && !in_word;
      in_word = !is_space(c);
      stream.characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }
  }
  return stream;
}

TextSet::TextSet(TokenStream stream, std::shared_ptr<const Vocabulary> vocabulary,
                 const BatchOptions& options)
    : stream_(std::move(stream)), vocabulary_(std::move(vocabulary)), options_(options) {}

int64_t TextSet::size() const {
  const int64_t targets = num_targets();
  return targets <= 0 ? 0 : (targets + options_.length - 1) / options_.length;
}

int64_t TextSet::length(int64_t i) const {
  return std::min(options_.length, num_targets() - i * options_.length);
}

Example TextSet::example(int64_t i, int64_t epoch) const {
  int64_t begin = i * options_.length, end = begin + length(i);
  // Only whole rows move, so that none becomes longer than length() says.
  if (epoch != kEvalEpoch && length(i) == options_.length) {
    const auto shift =
        static_cast<int64_t>(stream_of(options_.seed, 0, epoch).below(options_.length));
    begin = std::max<int64_t>(0, begin - shift);
    end -= shift;
  }
  Example example;
  const auto at = stream_.tokens.begin();
  example.tokens.assign(at + begin, at + end);
  if (options_.objective == Objective::kNextToken) {
    example.targets.assign(at + begin + 1, at + end + 1);
    return example;
  }
  example.targets.assign(example.tokens.size(), -1);
  const int64_t letters = vocabulary_->num_letters();
  corrupt(example.tokens, {letters, letters, vocabulary_->mask()}, options_.mask_fraction,
          epoch == kEvalEpoch ? stream_of(0, 1 + i, 0) : stream_of(options_.seed, 1 + i, epoch),
          example.targets.data());
  return example;
}

int64_t TextSet::fingerprint() const {
  const auto* bytes = reinterpret_cast<const char*>(stream_.tokens.data());
  const uint64_t hash =
      sequence_hash({bytes, stream_.tokens.size() * sizeof(uint16_t)}, vocabulary_->size());
  return static_cast<int64_t>(hash >> 1);
}

}  // namespace performer
