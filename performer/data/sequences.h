// SPDX-License-Identifier: Apache-2.0
// Sequences in memory, one byte per token, and their division into train, valid and test.
#ifndef PERFORMER_DATA_SEQUENCES_H_
#define PERFORMER_DATA_SEQUENCES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/fasta.h"
#include "performer/data/tokenizer.h"

namespace performer {

/// Token sequences, without begin and end tokens. Memory: one byte per token and eight per
/// sequence.
class SequenceSet {
 public:
  int64_t size() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_tokens() const { return offsets_.back(); }
  int64_t length(int64_t i) const { return offsets_[i + 1] - offsets_[i]; }
  std::span<const uint8_t> operator[](int64_t i) const {
    return {tokens_.data() + offsets_[i], static_cast<size_t>(length(i))};
  }
  void add(std::span<const uint8_t> tokens);

  /// Hash of all sequences in their order, not negative: tells whether two runs see the same data.
  int64_t fingerprint() const;

  /// Whole sequences drawn without replacement until `max_tokens` is reached (at least one
  /// sequence), in their order in this set; a copy of all of them when they are fewer.
  SequenceSet sample(int64_t max_tokens, uint64_t seed) const;

 private:
  std::vector<uint8_t> tokens_;
  std::vector<int64_t> offsets_ = {0};
};

enum class Split { kTrain, kValid, kTest };

struct SplitOptions {
  double valid_fraction = 0.05;  ///< expected share of distinct sequences, 0 to 1
  double test_fraction = 0.05;   ///< likewise; the sum must be below 1
  uint64_t seed = 0;             ///< another seed, another division

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// Stable 64-bit hash of residues and seed: the same on every platform and in every version.
uint64_t sequence_hash(std::string_view residues, uint64_t seed);

/// The side a sequence belongs to. It depends on residues, seed and fractions alone, so equal
/// sequences never stand on two sides, whatever file or order they come in.
Split split_of(std::string_view residues, const SplitOptions& options);

struct SplitSequences {
  SequenceSet train, valid, test;
  FastaCounts counts;          ///< of the input, over all files
  int64_t num_duplicates = 0;  ///< sequences equal to an earlier one (kept, on the same side)

  /// Two lines: what was read and changed; sizes of the three sides.
  std::string summary() const;
};

/// Reads FASTA files (`-` is standard input) and divides them. Empty records are left out and
/// counted. Throws what FastaReader throws, and std::runtime_error when no residue was read.
SplitSequences read_fasta_splits(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                 const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_SEQUENCES_H_
