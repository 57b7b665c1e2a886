// SPDX-License-Identifier: Apache-2.0
// Plain text: files and folders, divided into train, valid and test by blocks, and rows of tokens
// cut out of each side.
#ifndef PERFORMER_DATA_TEXT_H_
#define PERFORMER_DATA_TEXT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "performer/data/examples.h"
#include "performer/data/sequences.h"
#include "performer/data/vocabulary.h"

namespace performer {

struct TextFile {
  std::string path;
  std::string text;
};

/// A file, gzipped or not, or `-`; or of a folder and the folders in it all files named .txt, .md
/// or .rst (and .gz after it), in the order of their paths. Empty files are left out. Throws
/// std::runtime_error for a path that is not there, a folder without such a file, no byte of text.
std::vector<TextFile> read_text_files(const std::string& path);

/// Text as an invalid byte in it is no text of UTF-8.
struct TextRepair {
  int64_t sequences = 0;    ///< invalid, replaced by U+FFFD
  int64_t files = 0;        ///< that held one
  std::string first_place;  ///< file: byte N

  /// "" without any.
  std::string summary() const;
};
TextRepair repair(std::vector<TextFile>& files);

/// The sides of a text. A file is cut at line ends into blocks of at least `block_bytes` bytes, and
/// each block goes to a side by its hash, so equal blocks never stand on two sides. Runs of blocks
/// that follow each other in a file stay one section.
struct TextSplits {
  std::array<std::vector<std::string_view>, 3> sections;  ///< of train, valid, test
};
inline constexpr int64_t kTextBlockBytes = 1 << 16;
/// Views into `files`.
TextSplits split_text(const std::vector<TextFile>& files, const SplitOptions& options,
                      int64_t block_bytes = kTextBlockBytes);

/// A side as tokens: end, section, end, section, ..., end.
struct TokenStream {
  std::vector<uint16_t> tokens;
  int64_t bytes = 0;       ///< of text
  int64_t words = 0;       ///< between white space
  int64_t characters = 0;  ///< code points
};
/// Throws favor::Error for a vocabulary of more than 65,536 tokens.
TokenStream encode_text(const std::vector<std::string_view>& sections,
                        const Vocabulary& vocabulary);

/// Rows of options.length tokens of a stream. In training each epoch begins its rows at a place of
/// its own. Evaluations have every token but the first as a target exactly once (kNextToken).
class TextSet : public ExampleSet {
 public:
  TextSet(TokenStream stream, std::shared_ptr<const Vocabulary> vocabulary,
          const BatchOptions& options);

  int64_t size() const override;
  int64_t length(int64_t i) const override;
  Example example(int64_t i, int64_t epoch) const override;
  int64_t fingerprint() const override;
  const TokenStream& stream() const { return stream_; }
  /// Targets of an evaluation (kNextToken).
  int64_t num_targets() const { return std::ssize(stream_.tokens) - 1; }

 private:
  TokenStream stream_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  BatchOptions options_;
};

}  // namespace performer

#endif  // PERFORMER_DATA_TEXT_H_
