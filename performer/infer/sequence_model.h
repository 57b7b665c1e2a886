// SPDX-License-Identifier: Apache-2.0
// A trained model seen as a function of whole sequences, of any length and many at a time. Needs
// none of torch's headers.
#ifndef PERFORMER_INFER_SEQUENCE_MODEL_H_
#define PERFORMER_INFER_SEQUENCE_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "performer/data/tokenizer.h"
#include "performer/models/config.h"

namespace at {
class Tensor;
}

namespace performer {

class LanguageModel;

using TokenList = std::vector<int64_t>;

/// Computes without dropout and without gradient; each row is what the model gives for it alone.
class SequenceModel {
 public:
  /// `chunk` 0 passes every sequence through whole; otherwise a longer one goes through in
  /// adjoining windows of `chunk` tokens that do not see each other. Passes hold up to
  /// `batch_tokens` tokens, or one window. Throws favor::Error for values out of range, such as a
  /// chunk beyond a learned position table.
  SequenceModel(const LanguageModel& model, const Tokenizer& tokenizer, int64_t start_token,
                int64_t chunk, int64_t batch_tokens);
  ~SequenceModel();
  SequenceModel(SequenceModel&&) noexcept;

  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;
  bool causal() const { return config().causal; }
  int64_t chunk() const;
  int64_t batch_tokens() const;

  /// Start token, residues (in reverse order on request), end token.
  TokenList frame(std::span<const uint8_t> residues, bool reversed = false) const;

  /// Why rows of this many tokens cannot be passed through, or "".
  std::string problem(int64_t tokens) const;
  /// Windows a row of this many tokens is cut into.
  int64_t num_windows(int64_t tokens) const;

  /// Hidden states [length, dim] of each row, from a layer as LanguageModel::hidden counts them.
  std::vector<at::Tensor> hidden(const std::vector<TokenList>& rows, int64_t layer);
  /// Log-probabilities [length, vocab] of each row in double: what a causal model expects next, a
  /// masked one in each place. Throws std::runtime_error for values that are not finite.
  std::vector<at::Tensor> log_probabilities(const std::vector<TokenList>& rows);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_INFER_SEQUENCE_MODEL_H_
