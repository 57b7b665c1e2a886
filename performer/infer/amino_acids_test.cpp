// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/amino_acids.h"

#include <gtest/gtest.h>

#include <cmath>

#include "favor/check.h"

namespace performer {
namespace {

TEST(Blosum62, HasItsKnownEntries) {
  const AminoAcidMatrix matrix = blosum62();
  const auto at = [&](char a, char b) { return matrix[kAminoAcids.find(a)][kAminoAcids.find(b)]; };
  EXPECT_EQ(at('W', 'W'), 11);
  EXPECT_EQ(at('C', 'C'), 9);
  EXPECT_EQ(at('D', 'E'), 2);
  EXPECT_EQ(at('F', 'Y'), 3);
  EXPECT_EQ(at('V', 'I'), 3);
  EXPECT_EQ(at('K', 'R'), 2);
  EXPECT_EQ(at('C', 'E'), -4);
  EXPECT_EQ(at('A', 'V'), 0);
  double trace = 0, total = 0;
  for (size_t i = 0; i < 20; ++i) {
    trace += matrix[i][i];
    for (size_t j = 0; j < 20; ++j) {
      EXPECT_EQ(matrix[i][j], matrix[j][i]);
      total += matrix[i][j];
    }
  }
  EXPECT_EQ(trace, 116);
  EXPECT_EQ(total, -426);
}

TEST(AttentionProfile, CorrelatesWhatHeadsAttendTo) {
  // Heads 0 and 1 look at A and R alike and at N in the opposite measure; X never counts.
  AttentionProfile profile(3);
  const std::string letters = "ARNX";
  const auto weights = [](float a, float r, float n, float x) {
    std::vector<float> rows(36, 0.0f);  // a start token before, an end token behind
    for (size_t i = 1; i < 5; ++i) {
      const float row[] = {0, a, r, n, x, 0};
      std::copy(row, row + 6, rows.begin() + static_cast<long>(6 * i));
    }
    return rows;
  };
  profile.add(0, weights(0.4f, 0.4f, 0.1f, 0.1f).data(), 6, letters, 1);
  profile.add(1, weights(0.1f, 0.1f, 0.7f, 0.1f).data(), 6, letters, 1);
  profile.add(2, weights(0.2f, 0.2f, 0.5f, 0.1f).data(), 6, letters, 1);
  const AminoAcidMatrix similarity = profile.similarity();
  const size_t a = 0, r = 1, n = 2;
  EXPECT_NEAR(similarity[a][a], 1, 1e-6);
  EXPECT_NEAR(similarity[a][r], 1, 1e-6);
  EXPECT_NEAR(similarity[a][n], -1, 1e-6);
  EXPECT_TRUE(std::isnan(similarity[a][19]));  // V was never seen
  EXPECT_THROW(AttentionProfile(1), favor::Error);
}

TEST(AminoAcidMatrix, RanksPairsAndCorrelatesMatrices) {
  const AminoAcidMatrix matrix = blosum62();
  EXPECT_NEAR(off_diagonal_correlation(matrix, matrix), 1, 1e-12);
  AminoAcidMatrix negated = matrix;
  for (auto& row : negated) {
    for (double& x : row) x = -x;
  }
  EXPECT_NEAR(off_diagonal_correlation(matrix, negated), -1, 1e-12);
  negated[3][1] = NAN;
  EXPECT_NEAR(off_diagonal_correlation(matrix, negated), -1, 1e-12);
  EXPECT_EQ(pair_rank(matrix, 'F', 'Y'), 1);  // 3, with I and V
  EXPECT_EQ(pair_rank(matrix, 'V', 'I'), 1);
  EXPECT_EQ(pair_rank(matrix, 'D', 'E'), 3);
  EXPECT_THROW(pair_rank(matrix, 'D', 'X'), favor::Error);
}

}  // namespace
}  // namespace performer
