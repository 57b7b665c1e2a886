// SPDX-License-Identifier: Apache-2.0
// Random projection matrices: the rows w_f of the feature maps.
#ifndef FAVOR_PROJECTION_H_
#define FAVOR_PROJECTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace favor {

enum class ProjectionKind {
  kIid,         ///< rows independent N(0, I)
  kOrthogonal,  ///< blocks of D rows, Haar-distributed directions, independent blocks
  kHadamard,    ///< blocks (H D1)(H D2)(H D3): Hadamard matrices and random signs
  kGivens,      ///< blocks of D rows, products of 2 D log2(D) random plane rotations
  kSimplex,     ///< blocks of D rows, a regular simplex under a Haar-distributed rotation
};

enum class RowNorm {
  kChi,    ///< norms as those of N(0, I_D): the estimator is unbiased
  kSqrtD,  ///< all norms sqrt(D): the regularised kernel (SMREG), lower variance, biased low
};

std::string to_string(ProjectionKind kind);
std::string to_string(RowNorm norm);
/// Throws favor::Error, listing the known words, if `word` is none of them.
ProjectionKind projection_kind_from_string(std::string_view word);
RowNorm row_norm_from_string(std::string_view word);

/// Which matrix to draw: the same values give the same bits on every platform.
struct ProjectionSpec {
  ProjectionKind kind = ProjectionKind::kOrthogonal;
  RowNorm row_norm = RowNorm::kChi;
  int64_t num_features = 256;  ///< M >= 1
  int64_t head_dim = 64;       ///< D >= 1
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t redraw = 0;  ///< how many times the matrix has been redrawn
};

/// Draws the [M, D] row-major matrix of `spec` in scalar double arithmetic and rounds it to float
/// (docs/math.md, section 3). O(M D^2) time. Throws favor::Error for sizes below 1.
std::vector<float> draw_projection(const ProjectionSpec& spec);

/// A kHadamard matrix in the form that applies to a token in O(M log D): row i of block b is
/// scale times the first D columns of row i of (H D1)(H D2)(H D3), where H is the Walsh-Hadamard
/// matrix of entries +1 and -1 of size `block_rows` and the Dr are diagonals of random signs.
struct StructuredProjection {
  static constexpr int64_t kRounds = 3;

  int64_t num_features = 0;  ///< M
  int64_t head_dim = 0;      ///< D
  int64_t block_rows = 0;    ///< the smallest power of two that is at least D
  /// [blocks, kRounds, words]: bit i % 32 of word i / 32 is set where the sign of element i is
  /// negative. Rounds in the order in which they apply to a token: D3 first.
  std::vector<uint32_t> signs;
  std::vector<float> row_scales;  ///< [M] the row's norm over that of the row of +1 and -1 sums

  int64_t num_blocks() const { return (num_features + block_rows - 1) / block_rows; }
  int64_t words() const { return (block_rows + 31) / 32; }
  /// The word of signs that holds the one of element i.
  uint32_t word(int64_t block, int64_t round, int64_t i) const {
    return signs[static_cast<size_t>((block * kRounds + round) * words() + i / 32)];
  }
  /// Whether `round` of `block` turns the sign of element i.
  bool is_negative(int64_t block, int64_t round, int64_t i) const {
    return (word(block, round, i) >> (i % 32) & 1) != 0;
  }
  /// Whether the fields fit one another.
  bool is_complete() const;
  /// The matrix itself, [M, D] row-major: each element is rounded once.
  std::vector<float> to_dense() const;
};

/// The matrix that draw_projection(spec) gives, in its compact form. Throws favor::Error unless the
/// kind of `spec` is kHadamard, and for sizes below 1.
StructuredProjection draw_structured_projection(const ProjectionSpec& spec);

}  // namespace favor

#endif  // FAVOR_PROJECTION_H_
