// SPDX-License-Identifier: Apache-2.0
// Alphabets: letters to token ids and back, and the vocab.txt of a model folder.
#ifndef PERFORMER_DATA_TOKENIZER_H_
#define PERFORMER_DATA_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace performer {

/// One token per character; at most 256 tokens, so an id fits one byte.
class Tokenizer {
 public:
  /// The Performer paper's protein alphabet: ACDEFGHIKLMNPQRSTVWY (0 to 19), BOUXZ (20 to 24),
  /// `<` begin (25), `>` end (26), `_` padding (27), `*` mask (28).
  static Tokenizer protein();
  /// Reads a vocab.txt (one token per line, in id order). Throws std::runtime_error naming file,
  /// line, got and expected unless it lists a known alphabet.
  static Tokenizer load(const std::string& path);
  /// Writes vocab.txt atomically.
  void save(const std::string& path) const;

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t bos() const { return num_letters_; }
  int64_t eos() const { return num_letters_ + 1; }
  int64_t pad() const { return num_letters_ + 2; }
  int64_t mask() const { return num_letters_ + 3; }
  /// Ids below this are letters of the text, the others are special.
  int64_t num_letters() const { return num_letters_; }
  /// Ids below this are ordinary letters (for proteins the 20 amino acids).
  int64_t num_standard() const { return num_standard_; }
  bool is_special(int64_t id) const { return id >= num_letters_; }

  /// Ids of the letters of `text`, without begin and end. Throws favor::Error for any other
  /// character, lower case included: clean_residues normalises, visibly.
  std::vector<uint8_t> encode(std::string_view text) const;
  /// One character per id, specials included. Throws favor::Error for an id outside the alphabet.
  std::string decode(std::span<const int64_t> ids) const;
  std::string decode(std::span<const uint8_t> ids) const;

 private:
  Tokenizer(std::string_view standard, std::string_view rare);

  std::string tokens_;  // in id order
  int64_t num_standard_;
  int64_t num_letters_;
  std::array<int16_t, 256> ids_;  // of letters, -1 elsewhere
};

}  // namespace performer

#endif  // PERFORMER_DATA_TOKENIZER_H_
