// SPDX-License-Identifier: Apache-2.0
// Random projection matrices in scalar double arithmetic: + - * / sqrt in a fixed order, without
// contraction, so that every platform rounds to the same floats.
#include "favor/projection.h"

#include <cmath>
#include <limits>

#include "favor/check.h"
#include "favor/random.h"
#include "favor/words.h"

namespace favor {
namespace {

constexpr Word<ProjectionKind> kProjectionKinds[] = {
    {ProjectionKind::kIid, "iid"},
    {ProjectionKind::kOrthogonal, "orthogonal"},
};

constexpr Word<RowNorm> kRowNorms[] = {
    {RowNorm::kChi, "chi"},
    {RowNorm::kSqrtD, "sqrt_d"},
};

// Other users of the same seed (data order, dropout) draw under the seed itself.
constexpr uint64_t kProjectionDomain = 0x46A5'0F52'11E7'5C3Dull;

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void fill_normal(RandomStream& rng, double* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = rng.normal();
}

// Makes `row` a unit vector orthogonal to the `count` unit rows of `basis`. False if nothing is
// left of it. A second pass brings what cancellation left back to rounding level.
bool orthonormalize(const double* basis, int64_t count, double* row, int64_t D) {
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t j = 0; j < count; ++j) {
      const double* other = basis + j * D;
      const double overlap = dot(row, other, D);
      for (int64_t i = 0; i < D; ++i) row[i] -= overlap * other[i];
    }
    const double norm = std::sqrt(dot(row, row, D));
    if (!(norm > 1e-12)) return false;
    for (int64_t i = 0; i < D; ++i) row[i] /= norm;
  }
  return true;
}

}  // namespace

std::string to_string(ProjectionKind kind) {
  return word_of(kProjectionKinds, kind);
}
std::string to_string(RowNorm norm) {
  return word_of(kRowNorms, norm);
}

ProjectionKind projection_kind_from_string(std::string_view word) {
  return value_of(kProjectionKinds, word, "projection_kind_from_string: projection");
}

RowNorm row_norm_from_string(std::string_view word) {
  return value_of(kRowNorms, word, "row_norm_from_string: row_norm");
}

std::vector<float> draw_projection(const ProjectionSpec& spec) {
  const int64_t M = spec.num_features;
  const int64_t D = spec.head_dim;
  FAVOR_CHECK(M >= 1, "draw_projection: num_features is ", M, ", expected at least 1");
  FAVOR_CHECK(D >= 1, "draw_projection: head_dim is ", D, ", expected at least 1");
  FAVOR_CHECK(M <= std::numeric_limits<int32_t>::max() / D,
              "draw_projection: num_features x head_dim is ", M, " x ", D,
              ", expected a product below 2^31");

  // One stream per (layer, head) and one substream per redraw; blocks and rows follow one another
  // in it, so a matrix with more rows begins with the rows of a smaller one.
  RandomStream rng(spec.seed ^ kProjectionDomain, (uint64_t{spec.layer} << 32) | spec.head,
                   spec.redraw);
  const bool orthogonal = spec.kind == ProjectionKind::kOrthogonal;
  std::vector<float> matrix(static_cast<size_t>(M * D));
  std::vector<double> block(static_cast<size_t>(orthogonal ? D * D : D));
  std::vector<double> fresh(static_cast<size_t>(D));
  for (int64_t f = 0; f < M; ++f) {
    // Gram-Schmidt on Gaussian rows is the QR factorisation whose R has a positive diagonal: the
    // directions are Haar-distributed without any correction of signs.
    const int64_t count = orthogonal ? f % D : 0;
    double* row = block.data() + count * D;
    double norm = 1;
    if (orthogonal || spec.row_norm == RowNorm::kSqrtD) {
      do {
        fill_normal(rng, row, D);
      } while (!orthonormalize(block.data(), count, row, D));
      if (spec.row_norm == RowNorm::kChi) {
        fill_normal(rng, fresh.data(), D);
        norm = std::sqrt(dot(fresh.data(), fresh.data(), D));
      } else {
        norm = std::sqrt(static_cast<double>(D));
      }
    } else {
      fill_normal(rng, row, D);
    }
    for (int64_t i = 0; i < D; ++i) matrix[f * D + i] = static_cast<float>(norm * row[i]);
  }
  return matrix;
}

}  // namespace favor
