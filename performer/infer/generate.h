// SPDX-License-Identifier: Apache-2.0
// Sampling sequences from a causal language model, in constant time and memory per token.
#ifndef PERFORMER_INFER_GENERATE_H_
#define PERFORMER_INFER_GENERATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "favor/random.h"
#include "performer/data/tokenizer.h"
#include "performer/data/vocabulary.h"
#include "performer/infer/sampling.h"
#include "performer/models/models.h"

namespace performer {

/// Where a stream stands: what the model has absorbed and what it is to absorb next.
struct StreamStart {
  DecoderState state;            ///< of one stream; empty at the beginning
  std::vector<int64_t> pending;  ///< tokens not yet absorbed, at least 1
  RecentTokens recent;           ///< the last letters, pending ones included
  int64_t length = 0;            ///< letters so far, pending ones included
};

/// A stream of random numbers, by name, and how far it has been used.
struct RandomPlace {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint32_t substream = 0;
  favor::RandomStream::Position position;

  favor::RandomStream open() const;
};

/// A sequence to generate: from which start, with which random numbers.
struct StreamJob {
  const StreamStart* start = nullptr;
  RandomPlace random;
};

/// A stream that can be saved and continued.
struct SavedStream {
  StreamStart start;
  RandomPlace random;
  bool ended = false;  ///< by the end token: nothing follows
};

/// The beginning of a sequence: start token, then the prompt's letters (may be none).
StreamStart start_stream(const Tokenizer& tokenizer, int64_t start_token,
                         const std::string& prompt);
/// Puts the letters of `more` behind those of `start`.
void extend_stream(StreamStart& start, const Tokenizer& tokenizer, const std::string& more);

/// The random numbers of sequence `index` of a prompt: they depend on the three alone.
RandomPlace random_place(uint64_t seed, const std::string& prompt, int64_t index);

/// Which ids may be drawn: those below `num_letters`, and the end token.
struct LetterIds {
  LetterIds(const Tokenizer& tokenizer)
      : num_letters(tokenizer.num_letters()), end(tokenizer.eos()) {}
  LetterIds(const Vocabulary& vocabulary)
      : num_letters(vocabulary.num_letters()), end(vocabulary.eos()) {}

  int64_t num_letters = 0;
  int64_t end = 0;
};

/// What has been drawn: the job, the token (a letter, or the end token as the job's last), and its
/// log-probability under the model, before temperature, penalty and restrictions.
using TokenSink = std::function<void(int64_t job, int64_t id, double log_probability)>;

/// Streams that are decoded together.
inline constexpr int64_t kStreamsPerBatch = 16;

/// Continues every job until its end token or options.max_length letters, and tells `sink` every
/// token in the order of its sequence. Up to `batch` jobs, whatever their lengths (of equal length
/// with exact attention), are decoded together; those that have ended leave the batch. A job draws
/// the same alone as in a batch, but for the rounding of the model's products, which depends on the
/// number of rows. Jobs of one start share its first pass. Never draws begin, padding or mask.
/// `last` receives the state after a single job. Throws favor::Error for a model that is not
/// causal, starts that do not fit it, or options out of range.
void generate(LanguageModel& model, const LetterIds& letters, std::span<const StreamJob> jobs,
              const SamplingOptions& options, int64_t batch, const TokenSink& sink,
              SavedStream* last = nullptr);

struct GeneratedSequence {
  std::string letters;  ///< prompt included
  bool ended = false;   ///< by the end token; otherwise cut at max_length
};

/// Sequences first_index to first_index + count - 1 of `prompt`.
std::vector<GeneratedSequence> generate(LanguageModel& model, const Tokenizer& tokenizer,
                                        int64_t start_token, const std::string& prompt,
                                        int64_t count, int64_t first_index, uint64_t seed,
                                        const SamplingOptions& options);

}  // namespace performer

#endif  // PERFORMER_INFER_GENERATE_H_
