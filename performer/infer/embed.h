// SPDX-License-Identifier: Apache-2.0
// Embeddings of sequences: hidden states of a layer, per residue and pooled per sequence.
#ifndef PERFORMER_INFER_EMBED_H_
#define PERFORMER_INFER_EMBED_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/infer/embed_files.h"
#include "performer/infer/sequence_model.h"

namespace performer {

enum class Pooling {
  kMean,  ///< over the residues, start and end tokens left out
  kMax,   ///< over the residues, in each dimension
  kBos,   ///< the vector of the start token
  kEos,   ///< the vector of the end token
};
std::string to_string(Pooling pooling);
/// Throws favor::Error, listing the known words.
Pooling pooling_from_string(std::string_view word);
/// A list with commas, each word once; empty text is an empty list. Throws favor::Error.
std::vector<Pooling> poolings_from_string(std::string_view words);

struct EmbedOptions {
  std::vector<Pooling> poolings = {Pooling::kMean};
  bool per_residue = false;
  int64_t layer = -1;  ///< as LanguageModel::hidden counts them
};

/// Embeddings of sequences of at least one residue, in their order. Throws std::runtime_error when
/// a value is not finite, and what SequenceModel::hidden throws.
std::vector<Embedding> embed(SequenceModel& model,
                             const std::vector<std::span<const uint8_t>>& sequences,
                             const EmbedOptions& options);

struct EmbedProgress {
  int64_t done = 0;      ///< records, those of an earlier run included
  int64_t residues = 0;  ///< embedded by this run
};

/// Embeds all records that `folder` does not hold yet, longest first, and returns those that failed
/// in their order: without a residue, too long for the model, or for want of memory. A batch that
/// does not fit is halved. Batches depend on the records alone, not on what is done already.
std::vector<WorkFailure> embed_records(SequenceModel& model, const Records& records,
                                       const EmbedOptions& options, EmbeddingFolder& folder,
                                       const std::function<void(const EmbedProgress&)>& report);

}  // namespace performer

#endif  // PERFORMER_INFER_EMBED_H_
