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

/// Draws the [M, D] row-major matrix of `spec` in scalar double arithmetic and rounds it to float.
/// O(M D^2) time. Throws favor::Error for sizes below 1.
std::vector<float> draw_projection(const ProjectionSpec& spec);

}  // namespace favor

#endif  // FAVOR_PROJECTION_H_
