// SPDX-License-Identifier: Apache-2.0
// How probable a model finds sequences: log-likelihoods of a causal model, pseudo-log-likelihoods
// of a masked one.
#ifndef PERFORMER_INFER_SCORE_H_
#define PERFORMER_INFER_SCORE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/infer/records.h"
#include "performer/infer/sequence_model.h"
#include "performer/infer/work.h"

namespace performer {

/// Which way a causal model reads a sequence.
enum class Direction {
  kForward,  ///< as written
  kReverse,  ///< from the last residue to the first
  kMean,     ///< mean of the two log-probabilities of each residue
};
std::string to_string(Direction direction);
/// Throws favor::Error, listing the known words.
Direction direction_from_string(std::string_view word);

/// Natural logarithms of probabilities.
struct SequenceScore {
  std::vector<double> residues;  ///< of each residue, in the order of the sequence
  double end = 0;                ///< of the end token; causal models only

  /// Over the residues; the end token is apart.
  double log_likelihood() const;
  /// exp(-log_likelihood / residues).
  double perplexity() const;
};

/// Each residue given those before it (after it, read in reverse). Over forward scores,
/// -(log_likelihood + end) / (residues + 1) is the loss that evaluate measures in crops.
std::vector<SequenceScore> score_causal(SequenceModel& model,
                                        const std::vector<std::span<const uint8_t>>& sequences,
                                        Direction direction);

/// Each residue given all others: it is masked, alone, the first and the last like any other. As
/// many passes as residues, batched. A batch that does not fit into memory is halved; throws
/// std::bad_alloc when one row does not fit. `passed` hears of each batch's number of passes.
SequenceScore score_masked(SequenceModel& model, std::span<const uint8_t> sequence,
                           const std::function<void(int64_t)>& passed = {});

/// Log-probabilities [places, vocab] in double at `places` of `row`, each masked alone.
at::Tensor masked_log_probabilities(SequenceModel& model, const TokenList& row,
                                    const std::vector<int64_t>& places,
                                    const std::function<void(int64_t)>& passed = {});

/// Scores records, longest first, by the way of the model's kind. Results are in the order of the
/// records; those that failed (no residue, too long, no memory) have no residues and are in
/// `failures`, numbered within `records`.
std::vector<SequenceScore> score_records(SequenceModel& model, const Records& records,
                                         Direction direction, std::vector<WorkFailure>& failures,
                                         const std::function<void(int64_t)>& passed = {});

}  // namespace performer

#endif  // PERFORMER_INFER_SCORE_H_
