// SPDX-License-Identifier: Apache-2.0
#include "performer/data/vocabulary.h"

#include <cstdio>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "favor/check.h"
#include "favor/words.h"
#include "performer/data/byte_source.h"
#include "performer/data/pieces.h"
#include "performer/data/tokenizer.h"
#include "performer/data/utf8.h"
#include "performer/data/vocabulary_file.h"

namespace performer {
namespace {

constexpr const char* kProtein = "protein";
constexpr const char* kBytes = "bytes";
constexpr const char* kCharacters = "characters";
constexpr const char* kPieces = "pieces";
constexpr const char* kUnknown = "<unknown>";

constexpr favor::Word<TextUnit> kUnits[] = {
    {TextUnit::kBytes, kBytes}, {TextUnit::kCharacters, kCharacters}, {TextUnit::kPieces, kPieces}};

class ProteinVocabulary : public Vocabulary {
 public:
  std::string kind() const override { return kProtein; }
  int64_t num_letters() const override { return tokenizer_.num_letters(); }
  std::vector<int64_t> encode(std::string_view text) const override {
    const std::vector<uint8_t> ids = tokenizer_.encode(text);
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const int64_t> ids) const override { return tokenizer_.decode(ids); }
  void save(const std::string& folder) const override {
    tokenizer_.save((std::filesystem::path(folder) / "vocab.txt").string());
  }

 private:
  Tokenizer tokenizer_ = Tokenizer::protein();
};

class ByteVocabulary : public Vocabulary {
 public:
  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "0x%02x", byte);
      names.push_back(name);
    }
    return names;
  }

  std::string kind() const override { return kBytes; }
  int64_t num_letters() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      check_id(id);
      if (!is_special(id)) text += static_cast<char>(id);
    }
    return text;
  }
  int64_t num_bytes(int64_t id) const override { return is_special(id) ? 0 : 1; }
  void save(const std::string& folder) const override { write_vocabulary_file(folder, names()); }
};

class CharacterVocabulary : public Vocabulary {
 public:
  /// The last name stands for characters that are not in the list.
  explicit CharacterVocabulary(std::vector<std::string> names) : names_(std::move(names)) {
    for (size_t id = 0; id + 1 < names_.size(); ++id) {
      ids_[next_code_point(names_[id]).value] = static_cast<int64_t>(id);
    }
  }

  std::string kind() const override { return kCharacters; }
  int64_t num_letters() const override { return std::ssize(names_); }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = next_code_point(text.substr(at));
      FAVOR_CHECK(point.valid, "encode: byte ", at, " begins no valid UTF-8, expected a character");
      const auto found = ids_.find(point.value);
      ids.push_back(found == ids_.end() ? num_letters() - 1 : found->second);
      at += point.bytes;
    }
    return ids;
  }
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      check_id(id);
      if (is_special(id)) continue;
      text += id == num_letters() - 1 ? utf8_of(kReplacement) : names_[static_cast<size_t>(id)];
    }
    return text;
  }
  void save(const std::string& folder) const override { write_vocabulary_file(folder, names_); }

 private:
  std::vector<std::string> names_;
  std::unordered_map<uint32_t, int64_t> ids_;
};

class WordVocabulary : public Vocabulary {
 public:
  WordVocabulary(std::string kind, std::vector<std::string> words)
      : kind_(std::move(kind)), words_(std::move(words)) {
    for (size_t id = 0; id < words_.size(); ++id) ids_[words_[id]] = static_cast<int64_t>(id);
    FAVOR_CHECK(ids_.size() == words_.size(), kind_, ": the vocabulary names ", words_.size(),
                " words, ", ids_.size(), " of them distinct, expected no word twice");
  }

  std::string kind() const override { return kind_; }
  int64_t num_letters() const override { return static_cast<int64_t>(words_.size()); }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string_view::npos;) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string word(text.substr(at, end - at));
      const auto found = ids_.find(word);
      FAVOR_CHECK(found != ids_.end(), "encode: word ", ids.size() + 1, " is '", word,
                  "', expected one of the ", words_.size(), " of ", kind_);
      ids.push_back(found->second);
      at = end;
    }
    return ids;
  }
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      check_id(id);
      if (is_special(id)) continue;
      text += (text.empty() ? "" : " ") + words_[static_cast<size_t>(id)];
    }
    return text;
  }
  void save(const std::string& folder) const override { write_vocabulary_file(folder, words_); }

 private:
  std::string kind_;
  std::vector<std::string> words_;
  std::unordered_map<std::string, int64_t> ids_;
};

}  // namespace

std::string to_string(TextUnit unit) {
  return favor::word_of(kUnits, unit);
}

TextUnit text_unit_from_string(std::string_view word) {
  return favor::value_of(kUnits, word, "vocabulary");
}

int64_t Vocabulary::num_bytes(int64_t id) const {
  const int64_t ids[] = {id};
  return is_special(id) ? 0 : static_cast<int64_t>(decode(ids).size());
}

void Vocabulary::check_id(int64_t id) const {
  FAVOR_CHECK(id >= 0 && id < size(), "decode: token id is ", id, ", expected 0 to ", size() - 1);
}

std::shared_ptr<const Vocabulary> protein_vocabulary() {
  return std::make_shared<ProteinVocabulary>();
}

std::shared_ptr<const Vocabulary> byte_vocabulary() {
  return std::make_shared<ByteVocabulary>();
}

std::shared_ptr<const Vocabulary> character_vocabulary(const std::vector<std::string_view>& text) {
  std::set<uint32_t> seen;
  for (const std::string_view part : text) {
    for (size_t at = 0; at < part.size();) {
      const CodePoint point = next_code_point(part.substr(at));
      seen.insert(point.value);
      at += point.bytes;
    }
  }
  std::vector<std::string> names;
  for (const uint32_t value : seen) names.push_back(utf8_of(value));
  names.push_back(kUnknown);
  return std::make_shared<CharacterVocabulary>(std::move(names));
}

std::shared_ptr<const Vocabulary> word_vocabulary(const std::string& kind,
                                                  std::vector<std::string> words) {
  return std::make_shared<WordVocabulary>(kind, std::move(words));
}

std::shared_ptr<const Vocabulary> load_vocabulary(const std::string& kind,
                                                  const std::string& folder) {
  if (kind == kProtein) {
    Tokenizer::load((std::filesystem::path(folder) / "vocab.txt").string());
    return protein_vocabulary();
  }
  std::vector<std::string> tokens = read_vocabulary_file(folder);
  if (kind == kBytes) {
    if (tokens != ByteVocabulary::names()) {
      throw std::runtime_error(favor::message(folder, ": vocab.txt lists ", tokens.size(),
                                              " other tokens, expected the bytes 0x00 to 0xff"));
    }
    return byte_vocabulary();
  }
  if (kind == kCharacters) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool last = i + 1 == tokens.size();
      const CodePoint point = tokens[i].empty() ? CodePoint() : next_code_point(tokens[i]);
      if (last ? tokens[i] == kUnknown : point.valid && point.bytes == tokens[i].size()) continue;
      throw std::runtime_error(favor::message(folder, "/vocab.txt:", i + 1, ": token is '",
                                              tokens[i], "', expected ",
                                              last ? kUnknown : "one character"));
    }
    return std::make_shared<CharacterVocabulary>(std::move(tokens));
  }
  if (kind == kPieces) {
    const std::string path = (std::filesystem::path(folder) / "vocab.model").string();
    return piece_vocabulary(read_bytes(path), path);
  }
  return word_vocabulary(kind, std::move(tokens));
}

}  // namespace performer
