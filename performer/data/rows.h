// SPDX-License-Identifier: Apache-2.0
// How one row of a batch is made: tokens cut out of a sequence or of the joined stream, padding,
// targets, corruption. Which rows stand in which batch is decided in batches.cpp.
#ifndef PERFORMER_DATA_ROWS_H_
#define PERFORMER_DATA_ROWS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "favor/random.h"
#include "performer/data/batches.h"

namespace performer {

/// Consecutive tokens, the one that is only a target included.
using Window = std::vector<uint8_t>;

/// Tokens of a full window: options.length, and for next-token rows one more that is only a target.
int64_t window_tokens(const BatchOptions& options);

/// Tokens [start, start + count) of begin, sequence, end.
Window framed_window(std::span<const uint8_t> sequence, int64_t start, int64_t count,
                     const Tokenizer& tokenizer);

/// end, sequence, end, sequence, ..., end: every letter has a token before it.
class JoinedStream {
 public:
  JoinedStream() = default;
  /// Joins the sequences numbered in `order`.
  JoinedStream(const SequenceSet& sequences, std::vector<int64_t> order);

  int64_t size() const { return starts_.back() + 1; }
  /// Tokens [start, start + count) of the stream; `sequences` as at construction.
  Window window(const SequenceSet& sequences, int64_t start, int64_t count,
                const Tokenizer& tokenizer) const;

 private:
  std::vector<int64_t> order_;
  std::vector<int64_t> starts_ = {0};  // of the end token before each sequence, and of the last one
};

/// Which ids may be masked and what replaces them.
struct MaskIds {
  int64_t num_letters = 0;   ///< ids below may be chosen
  int64_t num_standard = 0;  ///< ids below may stand in
  int64_t mask = 0;
};

/// BERT's corruption: the share `fraction` of the letters (at least one) become targets and are
/// replaced by the mask (80 %), by a random letter (10 %) or by themselves.
void corrupt(std::span<int64_t> tokens, const MaskIds& ids, double fraction,
             favor::RandomStream random, int64_t* targets);

/// Pads the windows to one length, or packs them into one row, and sets the targets.
/// `mask_stream(i)` gives the generator of a window's corruption (masked LM only).
Batch make_batch(const std::vector<Window>& windows, const Tokenizer& tokenizer,
                 const BatchOptions& options,
                 const std::function<favor::RandomStream(int64_t)>& mask_stream);

}  // namespace performer

#endif  // PERFORMER_DATA_ROWS_H_
