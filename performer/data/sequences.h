// SPDX-License-Identifier: Apache-2.0
// Sequences in memory or in a mapped token file, one byte per token, and their division into train,
// valid and test.
#ifndef PERFORMER_DATA_SEQUENCES_H_
#define PERFORMER_DATA_SEQUENCES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/fasta.h"
#include "performer/data/tokenizer.h"

namespace performer {

/// Token sequences, without begin and end tokens. Memory: one byte per token and eight per
/// sequence; a view has none of its own.
class SequenceSet {
 public:
  SequenceSet() = default;
  /// A view of tokens that `owner` keeps: sequence i is [offsets[i], offsets[i + 1]) of `tokens`.
  SequenceSet(std::shared_ptr<const void> owner, const uint8_t* tokens,
              std::span<const int64_t> offsets);

  bool is_view() const { return owner_ != nullptr; }
  int64_t size() const { return static_cast<int64_t>(offsets().size()) - 1; }
  int64_t num_tokens() const { return offsets().back() - offsets().front(); }
  int64_t length(int64_t i) const { return offsets()[i + 1] - offsets()[i]; }
  std::span<const uint8_t> operator[](int64_t i) const {
    return {(is_view() ? view_tokens_ : tokens_.data()) + offsets()[i],
            static_cast<size_t>(length(i))};
  }
  /// Throws favor::Error for a view.
  void add(std::span<const uint8_t> tokens);

  /// Hash of all sequences in their order, not negative: tells whether two runs see the same data.
  int64_t fingerprint() const;

  /// Whole sequences drawn without replacement until `max_tokens` is reached (at least one
  /// sequence), in their order in this set; a copy of all of them when they are fewer.
  SequenceSet sample(int64_t max_tokens, uint64_t seed) const;

 private:
  std::span<const int64_t> offsets() const { return is_view() ? view_offsets_ : offsets_; }

  std::vector<uint8_t> tokens_;
  std::vector<int64_t> offsets_ = {0};
  std::shared_ptr<const void> owner_;  // of what a view shows; empty otherwise
  const uint8_t* view_tokens_ = nullptr;
  std::span<const int64_t> view_offsets_;
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
/// The same from `hash` = sequence_hash(residues, options.seed).
Split split_of_hash(uint64_t hash, const SplitOptions& options);

/// hash as a fraction in [0, 1).
double hash_fraction(uint64_t hash);

struct SplitSequences {
  SequenceSet train, valid, test;
  SequenceSet ood;             ///< held out by family; from token files only
  SequenceSet all;             ///< every sequence of a token file; empty for FASTA
  FastaCounts counts;          ///< of the input, over all files
  int64_t num_duplicates = 0;  ///< sequences equal to an earlier one (kept, on the same side)
  bool stored = false;         ///< the division is that of a token file

  /// Two lines: what was read and changed; sizes of the sides.
  std::string summary() const;
};

/// Reads FASTA files (`-` is standard input) and divides them. Empty records are left out and
/// counted. Throws what FastaReader throws, and std::runtime_error when no residue was read.
SplitSequences read_fasta_splits(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                 const SplitOptions& options);

/// Reads `path`: a token file (recognised by its first bytes), whose own division counts and whose
/// sequences stay in the file, or else FASTA.
SplitSequences read_splits(const std::string& path, const Tokenizer& tokenizer,
                           const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_SEQUENCES_H_
