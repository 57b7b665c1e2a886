// SPDX-License-Identifier: Apache-2.0
// Sampling sequences from a causal language model, in constant time per token.
#ifndef PERFORMER_INFER_GENERATE_H_
#define PERFORMER_INFER_GENERATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "favor/random.h"
#include "performer/data/tokenizer.h"
#include "performer/models/models.h"

namespace performer {

struct SamplingOptions {
  double temperature = 1.0;   ///< divides the logits; 0 takes the most probable token
  int64_t top_k = 0;          ///< only the k most probable tokens; 0: all
  double top_p = 1.0;         ///< only the most probable tokens that reach this share, in (0, 1]
  int64_t max_length = 1024;  ///< letters per sequence, prompt included, >= 1
  uint64_t seed = 0;

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

struct GeneratedSequence {
  std::string letters;  ///< prompt included
  bool ended = false;   ///< by the end token; otherwise cut at max_length
};

/// Draws one id from softmax(logits / temperature) restricted by top_k, top_p and to ids below
/// `num_letters` or equal to `end`. Ties are broken towards the smaller id. O(V log V).
/// Throws std::runtime_error when a logit of an allowed id is NaN or infinite.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     int64_t num_letters, int64_t end, favor::RandomStream& random);

/// `count` continuations of `prompt` (letters, may be empty), in batches of streams that start at
/// `start_token`. Sequence i draws from its own random stream (seed, first_index + i), so it does
/// not depend on the others. Never emits begin, padding or mask. Throws favor::Error for a model
/// that is not causal, letters outside the alphabet or options out of range.
std::vector<GeneratedSequence> generate(LanguageModel& model, const Tokenizer& tokenizer,
                                        int64_t start_token, const std::string& prompt,
                                        int64_t count, int64_t first_index,
                                        const SamplingOptions& options);

}  // namespace performer

#endif  // PERFORMER_INFER_GENERATE_H_
