// SPDX-License-Identifier: Apache-2.0
// Token files: prepared sequences with their headers, divided into sets, mapped instead of read.
// docs/data.md has the layout.
#ifndef PERFORMER_DATA_TOKEN_FILE_H_
#define PERFORMER_DATA_TOKEN_FILE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/sequences.h"

namespace performer {

/// Sets of a token file, in the order of its sequences.
enum class TokenSet { kTrain, kValid, kTest, kOod };
inline constexpr int kNumTokenSets = 4;

/// `train`, `valid`, `test`, `ood`.
std::string to_string(TokenSet set);
/// Throws favor::Error, listing the known words.
TokenSet token_set_from_string(std::string_view word);

/// A token file, mapped read-only and checked as a whole: size, checksum, offsets, tokens.
class TokenFile {
 public:
  /// Whether `path` is a file that begins like a token file. `-` and what cannot be read are not.
  static bool recognises(const std::string& path);

  /// Throws std::runtime_error `file: byte N: what is got, expected ...` for anything but a whole,
  /// unaltered file of this version. Reads the file once, for its checksum.
  explicit TokenFile(const std::string& path);

  int64_t size() const;
  int64_t num_tokens() const;
  int64_t size(TokenSet set) const;
  /// Sequence numbers of a set begin here.
  int64_t first(TokenSet set) const;

  /// Views that keep the mapping alive, this object or not.
  SequenceSet set(TokenSet set) const;
  SequenceSet all() const;

  /// Header of sequence i without `>`: its name is the first word.
  std::string_view header(int64_t i) const;
  /// JSON text: inputs, options, statistics.
  std::string_view description() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

/// What a token file is written from. Sequence i of the input has the tokens [offsets[i],
/// offsets[i + 1]).
struct TokenFileContent {
  std::array<int64_t, kNumTokenSets> set_sizes{};
  std::vector<int64_t> order;        ///< input numbers of the sequences, set by set
  std::span<const int64_t> offsets;  ///< of the input's sequences in `tokens`
  std::span<const uint8_t> tokens;
  std::span<const int64_t> header_offsets;  ///< likewise, in `headers`
  std::span<const uint8_t> headers;
  std::string description;
};

/// Writes atomically. Memory: 16 bytes per sequence.
void write_token_file(const std::string& path, const TokenFileContent& content);

}  // namespace performer

#endif  // PERFORMER_DATA_TOKEN_FILE_H_
