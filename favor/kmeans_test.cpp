// SPDX-License-Identifier: Apache-2.0
#include "favor/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "favor/random.h"
#include "favor/reference_kmeans.h"
#include "favor/testing.h"

namespace favor {
namespace {

struct Problem {
  int64_t B = 2, H = 2, L = 40, D = 8;
  KMeansParams params;
  std::vector<double> x, queries;
  std::vector<uint8_t> mask;
  std::vector<int64_t> offsets;

  Problem(uint64_t seed, int64_t length, int64_t width, int64_t C, int64_t iterations)
      : L(length), D(width) {
    params.num_clusters = C;
    params.iterations = iterations;
    RandomStream rng(seed, 77);
    for (std::vector<double>* values : {&x, &queries}) {
      for (int64_t i = 0; i < B * H * L * D; ++i) {
        // As floats hold them.
        values->push_back(static_cast<double>(static_cast<float>(rng.normal())));
      }
    }
  }
};

struct Answer {
  std::vector<int64_t> clusters, nearest;
  bool operator==(const Answer&) const = default;
};

template <class T>
Answer run(const Problem& p) {
  const auto rows = [](const std::vector<double>& values) {
    return std::vector<T>(values.begin(), values.end());
  };
  const std::vector<T> x = rows(p.x), queries = rows(p.queries);
  const auto size = static_cast<size_t>(p.B * p.H * p.L);
  Answer answer{std::vector<int64_t>(size, -7), std::vector<int64_t>(size, -7)};
  kmeans<T>(p.params, contiguous_view(x.data(), p.B, p.H, p.L, p.D), answer.clusters.data(),
            contiguous_view(queries.data(), p.B, p.H, p.L, p.D), answer.nearest.data());
  return answer;
}

// The reference's answer, and how far it was from a tie.
Answer truth(const Problem& p, double& margin) {
  const auto size = static_cast<size_t>(p.B * p.H * p.L);
  Answer answer{std::vector<int64_t>(size, -7), std::vector<int64_t>(size, -7)};
  margin = std::numeric_limits<double>::infinity();
  reference::kmeans<double>(
      p.params, contiguous_view(p.x.data(), p.B, p.H, p.L, p.D), answer.clusters.data(),
      contiguous_view(p.queries.data(), p.B, p.H, p.L, p.D), answer.nearest.data(), &margin);
  return answer;
}

TEST(KMeans, EqualsTheReferenceUnlessItWasNearATie) {
  int judged = 0, cases = 0;
  uint64_t seed = 0;
  for (const int64_t L : {0, 1, 2, 63, 64, 65, 150}) {
    for (const int64_t D : {1, 3, 17, 64}) {
      for (const int64_t C : {1, 2, 7, 64, 70}) {
        for (const bool masked : {false, true}) {
          ++seed;
          Problem p(seed, L, D, C, static_cast<int64_t>(seed % 4));
          if (masked) {
            p.mask.resize(static_cast<size_t>(p.B * L));
            RandomStream rng(seed, 78);
            for (uint8_t& m : p.mask) m = rng.below(3) == 0;
            p.params.key_padding_mask = p.mask.data();
            p.offsets = {0, L / 3, L / 3, L};
            p.params.cu_seqlens = p.offsets;
          }
          double margin = 0;
          const Answer expected = truth(p, margin);
          ++cases;
          if (margin < 1e-4) continue;  // rounding of the distances may decide
          ++judged;
          test::for_each_isa([&](const char* isa) {
            EXPECT_TRUE(run<float>(p) == expected)
                << isa << " L " << L << " D " << D << " C " << C << " masked " << masked;
          });
        }
      }
    }
  }
  EXPECT_GT(judged, cases / 2);
}

TEST(KMeans, FindsWellSeparatedClusters) {
  Problem p(5, 120, 6, 4, 5);
  // Four groups of thirty, so that a centre starts in each.
  const auto group_of = [](int64_t i) { return i % 120 / 30; };
  for (int64_t i = 0; i < p.B * p.H * p.L; ++i) {
    for (int64_t d = 0; d < p.D; ++d) {
      double& value = p.x[static_cast<size_t>(i * p.D + d)];
      value = 0.1 * value + (d == group_of(i) ? 10 : 0);
    }
  }
  test::for_each_isa([&](const char* isa) {
    const Answer answer = run<float>(p);
    for (size_t i = 0; i < answer.clusters.size(); ++i) {
      EXPECT_EQ(answer.clusters[i], group_of(static_cast<int64_t>(i))) << isa << " " << i;
    }
  });
}

TEST(KMeans, TokensLeftOutChangeNothing) {
  Problem p(9, 50, 5, 6, 3);
  const Answer before = run<float>(p);
  Problem longer(9, 58, 5, 6, 3);
  for (int64_t row = 0; row < p.B * p.H; ++row) {
    for (int64_t i = 0; i < longer.L; ++i) {
      for (int64_t d = 0; d < p.D; ++d) {
        const auto to = static_cast<size_t>((row * longer.L + i) * p.D + d);
        const auto from = static_cast<size_t>((row * p.L + std::min(i, p.L - 1)) * p.D + d);
        longer.x[to] = i < p.L ? p.x[from] : std::numeric_limits<double>::quiet_NaN();
        longer.queries[to] = p.queries[from];
      }
    }
  }
  longer.mask.assign(static_cast<size_t>(p.B * longer.L), 0);
  for (int64_t b = 0; b < p.B; ++b) {
    std::fill_n(longer.mask.begin() + b * longer.L + p.L, longer.L - p.L, uint8_t{1});
  }
  longer.params.key_padding_mask = longer.mask.data();
  const Answer after = run<float>(longer);
  for (int64_t row = 0; row < p.B * p.H; ++row) {
    for (int64_t i = 0; i < longer.L; ++i) {
      const auto at = static_cast<size_t>(row * longer.L + i);
      if (i >= p.L) {
        EXPECT_EQ(after.clusters[at], -1);
        continue;
      }
      const auto was = static_cast<size_t>(row * p.L + i);
      EXPECT_EQ(after.clusters[at], before.clusters[was]);
      EXPECT_EQ(after.nearest[at], before.nearest[was]);
    }
  }
}

TEST(KMeans, SaysWhatIsWrong) {
  Problem p(1, 4, 3, 2, 1);
  std::vector<float> x(p.x.begin(), p.x.end());
  std::vector<int64_t> out(16);
  const View4<const float> view = contiguous_view<const float>(x.data(), p.B, p.H, p.L, p.D);
  const auto error = [&](const KMeansParams& params, View4<const float> queries, int64_t* clusters,
                         int64_t* nearest) {
    return test::error_of([&] { kmeans<float>(params, view, clusters, queries, nearest); });
  };
  KMeansParams params = p.params;
  params.num_clusters = 0;
  EXPECT_EQ(error(params, {}, out.data(), nullptr),
            "kmeans: num_clusters is 0, expected 1 to 16777216");
  params = p.params;
  params.iterations = -1;
  EXPECT_EQ(error(params, {}, out.data(), nullptr), "kmeans: iterations is -1, expected 0 or more");
  EXPECT_EQ(error(p.params, {}, nullptr, nullptr),
            "kmeans: clusters is null, expected [B, H, L] numbers");
  EXPECT_EQ(error(p.params, view, out.data(), nullptr),
            "kmeans: nearest is null, expected [B, H, L] numbers (queries are given)");
  View4<const float> shorter = view;
  shorter.sizes[2] = 3;
  EXPECT_EQ(error(p.params, shorter, out.data(), out.data()),
            "kmeans: queries has shape [2, 2, 3, 3], expected [2, 2, 4, 3] (as x)");
  const std::vector<int64_t> offsets = {0, 5};
  params = p.params;
  params.cu_seqlens = offsets;
  EXPECT_EQ(error(params, {}, out.data(), nullptr),
            "kmeans: the last offset of cu_seqlens is 5, expected 4 (the length)");
}

}  // namespace
}  // namespace favor
