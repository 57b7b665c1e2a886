// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/amino_acids.h"

#include <cmath>

#include "favor/check.h"

namespace performer {
namespace {

// Lower triangle, a row per amino acid in the order of kAminoAcids.
constexpr std::array<int8_t, 210> kBlosum62 = {
    4,                                                                             // A
    -1, 5,                                                                         // R
    -2, 0,  6,                                                                     // N
    -2, -2, 1,  6,                                                                 // D
    0,  -3, -3, -3, 9,                                                             // C
    -1, 1,  0,  0,  -3, 5,                                                         // Q
    -1, 0,  0,  2,  -4, 2,  5,                                                     // E
    0,  -2, 0,  -1, -3, -2, -2, 6,                                                 // G
    -2, 0,  1,  -1, -3, 0,  0,  -2, 8,                                             // H
    -1, -3, -3, -3, -1, -3, -3, -4, -3, 4,                                         // I
    -1, -2, -3, -4, -1, -2, -3, -4, -3, 2,  4,                                     // L
    -1, 2,  0,  -1, -3, 1,  1,  -2, -1, -3, -2, 5,                                 // K
    -1, -1, -2, -3, -1, 0,  -2, -3, -2, 1,  2,  -1, 5,                             // M
    -2, -3, -3, -3, -2, -3, -3, -3, -1, 0,  0,  -3, 0,  6,                         // F
    -1, -2, -2, -1, -3, -1, -1, -2, -2, -3, -3, -1, -2, -4, 7,                     // P
    1,  -1, 1,  0,  -1, 0,  0,  0,  -1, -2, -2, 0,  -1, -2, -1, 4,                 // S
    0,  -1, 0,  -1, -1, -1, -1, -2, -2, -1, -1, -1, -1, -2, -1, 1,  5,             // T
    -3, -3, -4, -4, -2, -2, -3, -2, -2, -3, -2, -3, -1, 1,  -4, -3, -2, 11,        // W
    -2, -2, -2, -3, -2, -1, -2, -3, 2,  -1, -1, -2, -1, 3,  -3, -2, -2, 2,  7,     // Y
    0,  -3, -3, -3, -1, -2, -2, -3, -3, 3,  1,  -2, 1,  -1, -2, -2, 0,  -3, -1, 4  // V
};

// Sums of a set of pairs, for their correlation.
struct Moments {
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;

  void add(double a, double b) {
    n += 1;
    x += a;
    y += b;
    xx += a * a;
    yy += b * b;
    xy += a * b;
  }
  double correlation() const {
    const double covariance = xy - x * y / n;
    return covariance / std::sqrt((xx - x * x / n) * (yy - y * y / n));
  }
};

size_t index_of(char letter) {
  const size_t index = kAminoAcids.find(letter);
  FAVOR_CHECK(index != std::string_view::npos, "amino acid is '", letter, "', expected one of ",
              kAminoAcids);
  return index;
}

}  // namespace

AminoAcidMatrix blosum62() {
  AminoAcidMatrix matrix;
  size_t at = 0;
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j <= i; ++j) matrix[i][j] = matrix[j][i] = kBlosum62[at++];
  }
  return matrix;
}

AttentionProfile::AttentionProfile(int64_t num_heads) {
  FAVOR_CHECK(num_heads >= 2, "AttentionProfile: num_heads is ", num_heads,
              ", expected at least 2 (a correlation over heads)");
  sums_.assign(static_cast<size_t>(num_heads), {});
}

void AttentionProfile::add(int64_t head, const float* weights, int64_t L, std::string_view letters,
                           int64_t first) {
  for (int64_t i = 0; i < std::ssize(letters); ++i) {
    for (int64_t j = 0; j < std::ssize(letters); ++j) {
      const size_t aa = kAminoAcids.find(letters[static_cast<size_t>(j)]);
      if (aa == std::string_view::npos) continue;
      sums_[static_cast<size_t>(head)][aa] += weights[(first + i) * L + first + j];
    }
  }
}

AminoAcidMatrix AttentionProfile::similarity() const {
  // Shares: a head that looks at residues less than at the ends counts as much as any other.
  std::vector<std::array<double, 20>> shares = sums_;
  for (auto& head : shares) {
    double total = 0;
    for (const double x : head) total += x;
    for (double& x : head) x /= total;
  }
  AminoAcidMatrix matrix;
  for (size_t a = 0; a < 20; ++a) {
    for (size_t b = 0; b < 20; ++b) {
      Moments moments;
      for (const auto& head : shares) moments.add(head[a], head[b]);
      matrix[a][b] = moments.correlation();
    }
  }
  return matrix;
}

double off_diagonal_correlation(const AminoAcidMatrix& a, const AminoAcidMatrix& b) {
  Moments moments;
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (std::isfinite(a[i][j]) && std::isfinite(b[i][j])) moments.add(a[i][j], b[i][j]);
    }
  }
  return moments.correlation();
}

int64_t pair_rank(const AminoAcidMatrix& matrix, char a, char b) {
  const double value = matrix[index_of(a)][index_of(b)];
  int64_t rank = 1;
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j < i; ++j) rank += matrix[i][j] > value;
  }
  return rank;
}

}  // namespace performer
