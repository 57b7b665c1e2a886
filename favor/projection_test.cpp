// SPDX-License-Identifier: Apache-2.0
#include "favor/projection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "favor/check.h"
#include "favor/feature_map.h"
#include "favor/random.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

struct Size {
  int64_t M, D;
};
constexpr Size kSizes[] = {{1, 1}, {4, 16}, {16, 16}, {64, 16}, {40, 16}};
constexpr ProjectionKind kKinds[] = {ProjectionKind::kIid, ProjectionKind::kOrthogonal,
                                     ProjectionKind::kHadamard, ProjectionKind::kGivens,
                                     ProjectionKind::kSimplex};
// For head dims that are powers of two, kHadamard among them.
constexpr ProjectionKind kOrthogonalKinds[] = {ProjectionKind::kOrthogonal,
                                               ProjectionKind::kHadamard, ProjectionKind::kGivens};

ProjectionSpec make_spec(Size size, ProjectionKind kind, RowNorm norm, uint64_t seed) {
  ProjectionSpec spec;
  spec.kind = kind;
  spec.row_norm = norm;
  spec.num_features = size.M;
  spec.head_dim = size.D;
  spec.seed = seed;
  return spec;
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

using test::error_of;

// Cosines of all pairs of rows that share a block.
void expect_cosines(Size size, ProjectionKind kind, double cosine) {
  for (const RowNorm norm : {RowNorm::kChi, RowNorm::kSqrtD}) {
    const auto w = draw_projection(make_spec(size, kind, norm, 5));
    ASSERT_EQ(w.size(), static_cast<size_t>(size.M * size.D));
    for (int64_t i = 0; i < size.M; ++i) {
      for (int64_t j = i - i % size.D; j < i; ++j) {
        const float* a = w.data() + i * size.D;
        const float* b = w.data() + j * size.D;
        const double scale = std::sqrt(dot(a, a, size.D) * dot(b, b, size.D));
        EXPECT_NEAR(dot(a, b, size.D) / scale, cosine, 1e-5)
            << to_string(kind) << " " << size.M << " x " << size.D;
      }
    }
  }
}

TEST(Projection, BlocksOfTheOrthogonalKindsAreOrthonormal) {
  for (const ProjectionKind kind : kOrthogonalKinds) {
    for (const Size size : kSizes) expect_cosines(size, kind, 0);
    expect_cosines({5, 2}, kind, 0);
  }
  for (const Size size : {Size{7, 3}, Size{40, 17}}) {
    expect_cosines(size, ProjectionKind::kOrthogonal, 0);
    expect_cosines(size, ProjectionKind::kGivens, 0);
  }
}

TEST(SimplexProjection, BlocksAreRegularSimplices) {
  for (const Size size : {Size{1, 1}, Size{5, 2}, Size{7, 3}, Size{4, 16}, Size{40, 16}}) {
    expect_cosines(size, ProjectionKind::kSimplex, -1.0 / static_cast<double>(size.D - 1));
  }
}

TEST(Projection, BlocksAreNeverIdentical) {
  const Size size{64, 16};
  for (const ProjectionKind kind : kKinds) {
    const auto w = draw_projection(make_spec(size, kind, RowNorm::kSqrtD, 6));
    for (int64_t a = 0; a < 4; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        // Directions of independent blocks of size 16 overlap by 1/4 of their length on average.
        double largest = 0, total = 0;
        for (int64_t i = 0; i < 16; ++i) {
          for (int64_t j = 0; j < 16; ++j) {
            const double overlap =
                dot(w.data() + (a * 16 + i) * 16, w.data() + (b * 16 + j) * 16, 16) / 16;
            largest = std::max(largest, std::abs(overlap));
            total += overlap * overlap / 256;
          }
        }
        EXPECT_LT(largest, 0.97) << to_string(kind);
        EXPECT_GT(largest, 0.2) << to_string(kind);
        EXPECT_NEAR(total, 1.0 / 16, 0.03) << to_string(kind);
      }
    }
  }
}

TEST(Projection, NormsAreChiDistributed) {
  for (const Size size : kSizes) {
    for (const ProjectionKind kind : kKinds) {
      const int rows_wanted = 10000;
      double sum = 0, squares = 0;
      int rows = 0;
      for (uint64_t seed = 0; rows < rows_wanted; ++seed) {
        const auto w = draw_projection(make_spec(size, kind, RowNorm::kChi, seed));
        for (int64_t f = 0; f < size.M; ++f, ++rows) {
          const double n2 = dot(w.data() + f * size.D, w.data() + f * size.D, size.D);
          sum += n2;
          squares += n2 * n2;
        }
      }
      const double D = static_cast<double>(size.D);
      const double mean = sum / rows;
      EXPECT_NEAR(mean, D, 0.05 * D) << to_string(kind);
      // Var(chi^2_D) = 2D; its estimate has a relative standard error of at most sqrt(14 / 10,000).
      EXPECT_NEAR(squares / rows - mean * mean, 2 * D, 0.2 * 2 * D) << to_string(kind);
    }
  }
}

TEST(Projection, NormsAreSqrtD) {
  for (const Size size : kSizes) {
    for (const ProjectionKind kind : kKinds) {
      const auto w = draw_projection(make_spec(size, kind, RowNorm::kSqrtD, 7));
      const double D = static_cast<double>(size.D);
      for (int64_t f = 0; f < size.M; ++f) {
        const float* row = w.data() + f * size.D;
        // Each float is rounded by at most 2^-24 of itself, so the squared norm by 2^-23; the scale
        // of a structured row is a float as well.
        const double roundings = kind == ProjectionKind::kHadamard ? 2 : 1;
        EXPECT_NEAR(dot(row, row, size.D), D, roundings * 0x1p-23 * D);
      }
    }
  }
}

// A QR factorisation whose R has a diagonal of one fixed sign on the wrong side gives E Q_ii of
// about 0.2 in size for D = 16; Haar-distributed rows give 0.
TEST(Projection, DirectionsAreIsotropic) {
  const int64_t D = 16;
  const int draws = 4000;
  for (const ProjectionKind kind : kKinds) {
    std::vector<double> mean(D * D), square(D * D);
    for (int draw = 0; draw < draws; ++draw) {
      const auto w = draw_projection(make_spec({D, D}, kind, RowNorm::kSqrtD, draw));
      for (int64_t i = 0; i < D * D; ++i) {
        mean[i] += w[i] / draws;
        square[i] += static_cast<double>(w[i]) * w[i] / draws;
      }
    }
    for (int64_t i = 0; i < D * D; ++i) {
      // Entries times sqrt(D) have variance 1; their kurtosis is below 3, of rotations below 4.
      EXPECT_NEAR(mean[i], 0, 5 / std::sqrt(draws)) << to_string(kind) << " element " << i;
      EXPECT_NEAR(square[i], 1, 5 * std::sqrt(3.0 / draws)) << to_string(kind) << " element " << i;
    }
  }
}

void expect_every_field_matters(const ProjectionSpec& base) {
  const auto w = draw_projection(base);
  EXPECT_EQ(w, draw_projection(base));
  auto changed = [&](auto change) {
    ProjectionSpec spec = base;
    change(spec);
    return draw_projection(spec);
  };
  const std::vector<std::vector<float>> others = {
      changed([](ProjectionSpec& s) { s.seed = 2; }),
      changed([](ProjectionSpec& s) { s.seed = 1 + (uint64_t{1} << 32); }),
      changed([](ProjectionSpec& s) { s.layer = 1; }),
      changed([](ProjectionSpec& s) { s.head = 1; }),
      changed([](ProjectionSpec& s) { s.redraw = 1; }),
      changed([](ProjectionSpec& s) { s.row_norm = RowNorm::kSqrtD; }),
  };
  const auto iid = changed([](ProjectionSpec& s) { s.kind = ProjectionKind::kIid; });
  EXPECT_EQ(base.kind == ProjectionKind::kIid, iid == w);
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(w, others[i]) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(others[j], others[i]) << i << " " << j;
  }
  // A larger matrix begins with the smaller one.
  const auto larger = changed([](ProjectionSpec& s) { s.num_features = 64; });
  EXPECT_TRUE(std::equal(w.begin(), w.end(), larger.begin()));
}

TEST(Projection, EveryFieldOfTheSpecMatters) {
  for (const ProjectionKind kind : kKinds) {
    SCOPED_TRACE(to_string(kind));
    expect_every_field_matters(make_spec({40, 16}, kind, RowNorm::kChi, 1));
  }
}

TEST(Projection, HeadDimOneHasBothSigns) {
  for (const ProjectionKind kind : kKinds) {
    for (const RowNorm norm : {RowNorm::kChi, RowNorm::kSqrtD}) {
      const auto w = draw_projection(make_spec({256, 1}, kind, norm, 3));
      const auto positive = std::count_if(w.begin(), w.end(), [](float x) { return x > 0; });
      EXPECT_NEAR(static_cast<double>(positive), 128, 5 * 8) << to_string(kind);
    }
  }
}

// FNV-1a over the little-endian bytes: these values may not change with platform, compiler or
// release, because a seed in a file must always name the same matrix.
uint64_t hash(const std::vector<float>& values) {
  uint64_t h = 14695981039346656037ull;
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int byte = 0; byte < 4; ++byte) {
      h ^= (bits >> (8 * byte)) & 255;
      h *= 1099511628211ull;
    }
  }
  return h;
}

TEST(Projection, BitsArePinned) {
  ProjectionSpec spec;
  spec.num_features = 256;
  spec.head_dim = 64;
  spec.seed = 42;
  spec.layer = 1;
  spec.head = 2;
  spec.redraw = 3;
  auto draw = [&](ProjectionKind kind, RowNorm norm) {
    spec.kind = kind;
    spec.row_norm = norm;
    return draw_projection(spec);
  };
  const auto orthogonal = draw(ProjectionKind::kOrthogonal, RowNorm::kChi);
  EXPECT_EQ(orthogonal[0], -0x1.3ac934p+0f);
  EXPECT_EQ(orthogonal[1], -0x1.63516cp-2f);
  EXPECT_EQ(hash(orthogonal), 0xfb3900ef7e077bf6ull);
  EXPECT_EQ(hash(draw(ProjectionKind::kOrthogonal, RowNorm::kSqrtD)), 0x47eb25322e3cb525ull);
  EXPECT_EQ(hash(draw(ProjectionKind::kIid, RowNorm::kChi)), 0x02420e8bde40128eull);
  EXPECT_EQ(hash(draw(ProjectionKind::kIid, RowNorm::kSqrtD)), 0xd42e0fa4a6e05fc2ull);
  EXPECT_EQ(hash(draw(ProjectionKind::kHadamard, RowNorm::kChi)), 0x5d9c52c3822b0c6aull);
  EXPECT_EQ(hash(draw(ProjectionKind::kGivens, RowNorm::kChi)), 0x2f9896090af81c8full);
  EXPECT_EQ(hash(draw(ProjectionKind::kSimplex, RowNorm::kChi)), 0xd50b8718332b9bf7ull);
}

TEST(Projection, ErrorsNameArgumentAndValue) {
  ProjectionSpec spec;
  spec.num_features = 0;
  EXPECT_EQ(error_of([&] { draw_projection(spec); }),
            "draw_projection: num_features is 0, expected at least 1");
  spec.num_features = 4;
  spec.head_dim = -3;
  EXPECT_EQ(error_of([&] { draw_projection(spec); }),
            "draw_projection: head_dim is -3, expected at least 1");
  spec.num_features = spec.head_dim = int64_t{1} << 40;
  EXPECT_EQ(error_of([&] { draw_projection(spec); }),
            "draw_projection: num_features x head_dim is 1099511627776 x 1099511627776, expected a "
            "product below 2^31");
}

TEST(Words, GoThereAndBack) {
  for (const auto kind : kKinds) {
    EXPECT_EQ(projection_kind_from_string(to_string(kind)), kind);
  }
  for (const auto norm : {RowNorm::kChi, RowNorm::kSqrtD}) {
    EXPECT_EQ(row_norm_from_string(to_string(norm)), norm);
  }
  for (const auto kind : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
    EXPECT_EQ(feature_map_from_string(to_string(kind)), kind);
  }
  EXPECT_EQ(to_string(FeatureMapKind::kPositive), "positive");
  EXPECT_EQ(to_string(FeatureMapKind::kRelu), "relu");
  EXPECT_EQ(to_string(ProjectionKind::kOrthogonal), "orthogonal");
  EXPECT_EQ(to_string(RowNorm::kSqrtD), "sqrt_d");
}

TEST(Words, ErrorsListTheKnownWords) {
  EXPECT_EQ(
      error_of([] { projection_kind_from_string("gauss"); }),
      "projection_kind_from_string: projection is 'gauss', expected iid | orthogonal | hadamard "
      "| givens | simplex");
  EXPECT_EQ(error_of([] { row_norm_from_string(""); }),
            "row_norm_from_string: row_norm is '', expected chi | sqrt_d");
}

}  // namespace
}  // namespace favor
