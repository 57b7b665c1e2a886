// SPDX-License-Identifier: Apache-2.0
// What the token ids of a model stand for, whatever its task: text to ids and back, and the file a
// model folder keeps of it.
#ifndef PERFORMER_DATA_VOCABULARY_H_
#define PERFORMER_DATA_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace performer {

/// Ids 0 to num_letters() - 1 stand for text; begin, end, padding and mask follow.
class Vocabulary {
 public:
  virtual ~Vocabulary() = default;

  /// The word in config.json.
  virtual std::string kind() const = 0;
  virtual int64_t num_letters() const = 0;
  int64_t size() const { return num_letters() + 4; }
  int64_t bos() const { return num_letters(); }
  int64_t eos() const { return num_letters() + 1; }
  int64_t pad() const { return num_letters() + 2; }
  int64_t mask() const { return num_letters() + 3; }
  bool is_special(int64_t id) const { return id >= num_letters(); }

  /// Ids of `text`, without begin and end. Throws favor::Error for what cannot be a token.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// The text of the ids that stand for text. Throws favor::Error for an id outside.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// Bytes of text that an id stands for; 0 for those without.
  virtual int64_t num_bytes(int64_t id) const;
  /// Writes vocab.txt, one token per line in id order, and what else load_vocabulary needs.
  virtual void save(const std::string& folder) const = 0;

 protected:
  /// Throws favor::Error unless 0 <= id < size().
  void check_id(int64_t id) const;
};

/// What a text is cut into.
enum class TextUnit { kBytes, kCharacters, kPieces };
/// `bytes`, `characters`, `pieces`.
std::string to_string(TextUnit unit);
/// Throws favor::Error, listing the known words.
TextUnit text_unit_from_string(std::string_view word);

/// The paper's protein alphabet (Tokenizer::protein).
std::shared_ptr<const Vocabulary> protein_vocabulary();
/// The 256 bytes.
std::shared_ptr<const Vocabulary> byte_vocabulary();
/// The distinct code points of some valid UTF-8, in ascending order, and one for all others, which
/// decodes as U+FFFD.
std::shared_ptr<const Vocabulary> character_vocabulary(const std::vector<std::string_view>& text);
/// Words between blanks, such as the symbols of a generated task. `kind` names the list.
std::shared_ptr<const Vocabulary> word_vocabulary(const std::string& kind,
                                                  std::vector<std::string> words);

/// Reads what a vocabulary of this kind saved. Throws std::runtime_error naming file, line, got and
/// expected.
std::shared_ptr<const Vocabulary> load_vocabulary(const std::string& kind,
                                                  const std::string& folder);

}  // namespace performer

#endif  // PERFORMER_DATA_VOCABULARY_H_
