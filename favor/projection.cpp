// SPDX-License-Identifier: Apache-2.0
// Random projection matrices in scalar double arithmetic: + - * / sqrt in a fixed order, without
// contraction, so that every platform rounds to the same floats.
#include "favor/projection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "favor/check.h"
#include "favor/random.h"
#include "favor/words.h"

namespace favor {
namespace {

constexpr Word<ProjectionKind> kProjectionKinds[] = {
    {ProjectionKind::kIid, "iid"},           {ProjectionKind::kOrthogonal, "orthogonal"},
    {ProjectionKind::kHadamard, "hadamard"}, {ProjectionKind::kGivens, "givens"},
    {ProjectionKind::kSimplex, "simplex"},
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

// Fills row `count` of `block` with a uniformly distributed direction orthogonal to the earlier
// rows. Gram-Schmidt on Gaussian rows is the QR factorisation whose R has a positive diagonal: the
// directions are Haar-distributed without any correction of signs.
void draw_direction(RandomStream& rng, double* block, int64_t count, int64_t D) {
  double* row = block + count * D;
  do {
    fill_normal(rng, row, D);
  } while (!orthonormalize(block, count, row, D));
}

double draw_norm(RandomStream& rng, RowNorm norm, double* fresh, int64_t D) {
  if (norm == RowNorm::kSqrtD) return std::sqrt(static_cast<double>(D));
  fill_normal(rng, fresh, D);
  return std::sqrt(dot(fresh, fresh, D));
}

// Vertices of a regular simplex around 0: the rows of a Haar-distributed matrix less their mean,
// which leaves norms sqrt(1 - 1/D) and inner products -1/D.
void draw_simplex_block(RandomStream& rng, double* block, int64_t D) {
  for (int64_t i = 0; i < D; ++i) draw_direction(rng, block, i, D);
  if (D == 1) return;  // the only vertex stays where it is
  const double scale = std::sqrt(static_cast<double>(D) / static_cast<double>(D - 1));
  for (int64_t column = 0; column < D; ++column) {
    double mean = 0;
    for (int64_t i = 0; i < D; ++i) mean += block[i * D + column];
    mean /= static_cast<double>(D);
    for (int64_t i = 0; i < D; ++i) {
      block[i * D + column] = scale * (block[i * D + column] - mean);
    }
  }
}

// Cosine and sine of a uniform angle: a uniform point of the unit disc on its way to the circle.
std::pair<double, double> draw_angle(RandomStream& rng) {
  while (true) {
    const double x = 2 * rng.uniform() - 1;
    const double y = 2 * rng.uniform() - 1;
    const double square = x * x + y * y;
    if (square > 1 || square == 0) continue;
    const double radius = std::sqrt(square);
    return {x / radius, y / radius};
  }
}

// 2 D ceil(log2(D)) rotations by uniform angles in uniform pairs of columns. They start from a
// random permutation with random signs, so that no coordinate is preferred by any row. With half as
// many, rows that still are close to a coordinate axis bias the estimate for sparse tokens.
void draw_givens_block(RandomStream& rng, double* block, int64_t D) {
  std::vector<int64_t> column(static_cast<size_t>(D));
  for (int64_t i = 0; i < D; ++i) column[static_cast<size_t>(i)] = i;
  std::fill_n(block, D * D, 0.0);
  for (int64_t i = 0; i < D; ++i) {
    const int64_t other = i + static_cast<int64_t>(rng.below(static_cast<uint64_t>(D - i)));
    std::swap(column[static_cast<size_t>(i)], column[static_cast<size_t>(other)]);
    block[i * D + column[static_cast<size_t>(i)]] = rng.bits() >> 31 != 0 ? -1.0 : 1.0;
  }
  const int64_t rotations = 2 * D * std::bit_width(static_cast<uint64_t>(D - 1));
  for (int64_t rotation = 0; rotation < rotations; ++rotation) {
    const auto first = static_cast<int64_t>(rng.below(static_cast<uint64_t>(D)));
    auto second = static_cast<int64_t>(rng.below(static_cast<uint64_t>(D - 1)));
    if (second >= first) ++second;
    const auto [cosine, sine] = draw_angle(rng);
    for (double* row = block; row < block + D * D; row += D) {
      const double x = row[first];
      const double y = row[second];
      row[first] = cosine * x - sine * y;
      row[second] = sine * x + cosine * y;
    }
  }
}

// Multiplies by the Walsh-Hadamard matrix of entries +1 and -1; exact for the integers met here.
void hadamard(double* x, int64_t size) {
  for (int64_t stride = 1; stride < size; stride *= 2) {
    for (int64_t i = 0; i < size; ++i) {
      if ((i & stride) != 0) continue;
      const double a = x[i];
      const double b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

// Transposed block `block` without its scales: column j of (H D1)(H D2)(H D3) for j < D, which are
// integers.
void expand_block(const StructuredProjection& matrix, int64_t block, double* columns) {
  const int64_t size = matrix.block_rows;
  for (int64_t j = 0; j < matrix.head_dim; ++j) {
    double* column = columns + j * size;
    std::fill_n(column, size, 0.0);
    column[j] = 1;
    for (int64_t round = 0; round < StructuredProjection::kRounds; ++round) {
      for (int64_t i = 0; i < size; ++i) {
        if (matrix.is_negative(block, round, i)) column[i] = -column[i];
      }
      hadamard(column, size);
    }
  }
}

void check_sizes(const char* op, const ProjectionSpec& spec) {
  const int64_t M = spec.num_features;
  const int64_t D = spec.head_dim;
  FAVOR_CHECK(M >= 1, op, ": num_features is ", M, ", expected at least 1");
  FAVOR_CHECK(D >= 1, op, ": head_dim is ", D, ", expected at least 1");
  FAVOR_CHECK(M <= std::numeric_limits<int32_t>::max() / D, op, ": num_features x head_dim is ", M,
              " x ", D, ", expected a product below 2^31");
}

// One stream per (layer, head) and one substream per redraw; blocks and rows follow one another
// in it, so a matrix with more rows begins with the rows of a smaller one.
RandomStream make_stream(const ProjectionSpec& spec) {
  return RandomStream(spec.seed ^ kProjectionDomain, (uint64_t{spec.layer} << 32) | spec.head,
                      spec.redraw);
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
  check_sizes("draw_projection", spec);
  if (spec.kind == ProjectionKind::kHadamard) return draw_structured_projection(spec).to_dense();
  const int64_t M = spec.num_features;
  const int64_t D = spec.head_dim;
  RandomStream rng = make_stream(spec);
  const bool iid = spec.kind == ProjectionKind::kIid;
  std::vector<float> matrix(static_cast<size_t>(M * D));
  std::vector<double> block(static_cast<size_t>(iid ? D : D * D));
  std::vector<double> fresh(static_cast<size_t>(D));
  for (int64_t f = 0; f < M; ++f) {
    const int64_t count = iid ? 0 : f % D;
    double* row = block.data() + count * D;
    double norm = 1;
    if (iid && spec.row_norm == RowNorm::kChi) {
      fill_normal(rng, row, D);
    } else {
      if (iid || spec.kind == ProjectionKind::kOrthogonal) {
        draw_direction(rng, block.data(), count, D);
      } else if (count == 0 && spec.kind == ProjectionKind::kGivens) {
        draw_givens_block(rng, block.data(), D);
      } else if (count == 0) {
        draw_simplex_block(rng, block.data(), D);
      }
      norm = draw_norm(rng, spec.row_norm, fresh.data(), D);
    }
    for (int64_t i = 0; i < D; ++i) matrix[f * D + i] = static_cast<float>(norm * row[i]);
  }
  return matrix;
}

bool StructuredProjection::is_complete() const {
  return num_features >= 1 && head_dim >= 1 &&
         block_rows == static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(head_dim))) &&
         signs.size() == static_cast<size_t>(num_blocks() * kRounds * words()) &&
         row_scales.size() == static_cast<size_t>(num_features);
}

std::vector<float> StructuredProjection::to_dense() const {
  std::vector<float> matrix(static_cast<size_t>(num_features * head_dim));
  std::vector<double> columns(static_cast<size_t>(block_rows * head_dim));
  for (int64_t f = 0; f < num_features; ++f) {
    if (f % block_rows == 0) expand_block(*this, f / block_rows, columns.data());
    const double scale = row_scales[static_cast<size_t>(f)];
    for (int64_t j = 0; j < head_dim; ++j) {
      matrix[f * head_dim + j] =
          static_cast<float>(scale * columns[j * block_rows + f % block_rows]);
    }
  }
  return matrix;
}

StructuredProjection draw_structured_projection(const ProjectionSpec& spec) {
  const char* op = "draw_structured_projection";
  FAVOR_CHECK(spec.kind == ProjectionKind::kHadamard, op, ": kind is ", to_string(spec.kind),
              ", expected ", to_string(ProjectionKind::kHadamard));
  check_sizes(op, spec);
  StructuredProjection matrix;
  matrix.num_features = spec.num_features;
  matrix.head_dim = spec.head_dim;
  matrix.block_rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(spec.head_dim)));
  const int64_t D = matrix.head_dim;
  const int64_t size = matrix.block_rows;
  const auto block_words = static_cast<size_t>(StructuredProjection::kRounds * matrix.words());
  matrix.signs.resize(static_cast<size_t>(matrix.num_blocks()) * block_words);
  RandomStream rng = make_stream(spec);
  std::vector<double> columns(static_cast<size_t>(size * D)), fresh(static_cast<size_t>(D));
  std::vector<double> squares(static_cast<size_t>(size));
  const uint32_t used_bits = size < 32 ? (uint32_t{1} << size) - 1 : ~uint32_t{0};
  for (int64_t block = 0; block < matrix.num_blocks(); ++block) {
    do {
      for (size_t word = 0; word < block_words; ++word) {
        matrix.signs[static_cast<size_t>(block) * block_words + word] = rng.bits() & used_bits;
      }
      expand_block(matrix, block, columns.data());
      std::fill(squares.begin(), squares.end(), 0.0);
      for (int64_t j = 0; j < D; ++j) {
        for (int64_t i = 0; i < size; ++i) {
          const double value = columns[j * size + i];
          squares[static_cast<size_t>(i)] += value * value;
        }
      }
      // A row all of whose length lies in the columns cut off has no direction.
    } while (std::find(squares.begin(), squares.end(), 0.0) != squares.end());
    const int64_t rows = std::min(size, matrix.num_features - block * size);
    for (int64_t i = 0; i < rows; ++i) {
      const double norm = draw_norm(rng, spec.row_norm, fresh.data(), D);
      matrix.row_scales.push_back(
          static_cast<float>(norm / std::sqrt(squares[static_cast<size_t>(i)])));
    }
  }
  return matrix;
}

}  // namespace favor
