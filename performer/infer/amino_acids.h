// SPDX-License-Identifier: Apache-2.0
// How alike amino acids are: to a substitution matrix, and to the attention of a model. No torch
// here.
#ifndef PERFORMER_INFER_AMINO_ACIDS_H_
#define PERFORMER_INFER_AMINO_ACIDS_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace performer {

/// The twenty standard amino acids in the order of the matrices below.
inline constexpr std::string_view kAminoAcids = "ARNDCQEGHILKMFPSTWYV";

using AminoAcidMatrix = std::array<std::array<double, 20>, 20>;

/// The substitution scores of Henikoff and Henikoff (1992), in half bits.
AminoAcidMatrix blosum62();

/// Adds up, over many sequences, what share of each head's attention falls on each amino acid.
class AttentionProfile {
 public:
  /// `num_heads` counts the heads of all layers.
  explicit AttentionProfile(int64_t num_heads);

  /// Adds the weights [L, L] of one head, rows over columns, for a sequence whose letters stand at
  /// [first, first + letters.size()) of the L tokens. Tokens that are no standard amino acid do
  /// not count.
  void add(int64_t head, const float* weights, int64_t L, std::string_view letters, int64_t first);

  /// Pearson correlation, over heads, of what two amino acids attract (Vig et al. 2020, section
  /// 4.1, as in the paper's Fig. 13). NaN where a profile is constant. Needs at least two heads.
  AminoAcidMatrix similarity() const;

 private:
  std::vector<std::array<double, 20>> sums_;  // [head], attention on each amino acid
};

/// Pearson correlation of the entries above the diagonals; pairs with NaN are left out.
double off_diagonal_correlation(const AminoAcidMatrix& a, const AminoAcidMatrix& b);

/// Where a pair of letters stands among the 190 pairs, 1 = the largest entry.
int64_t pair_rank(const AminoAcidMatrix& matrix, char a, char b);

}  // namespace performer

#endif  // PERFORMER_INFER_AMINO_ACIDS_H_
