// SPDX-License-Identifier: Apache-2.0
// k-means by vectors: centres lie in rows and tokens in columns, so that the least distance runs
// down a column. What is compared is x.c - |c|^2 / 2, which grows as the distance falls.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/kmeans.cpp"
#include "hwy/foreach_target.h"
#include "favor/tokens-inl.h"
// clang-format on

#include <vector>

#include "favor/kmeans.h"
#include "favor/kmeans_plan.h"
#include "favor/parallel.h"
#include "favor/plan_checks.h"
#include "favor/reference_kmeans.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Tokens, and centres, handled at a time.
constexpr int64_t kTokens = 64;
constexpr int64_t kCentres = 64;

/// The tokens of one head in one segment, and their centres.
class HeadClusters {
 public:
  explicit HeadClusters(const KMeansPlan& plan)
      : plan_(plan),
        means_(static_cast<size_t>(plan.C * plan.D)),
        sums_(static_cast<size_t>(plan.C * plan.D)),
        count_(static_cast<size_t>(plan.C)) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  void run(int64_t b, int64_t h, const Segment& segment) {
    b_ = b;
    h_ = h;
    int64_t* clusters = plan_.clusters + (b * plan_.H + h) * plan_.L;
    tokens_.clear();
    for (int64_t i = segment.k_begin; i < segment.k_end; ++i) {
      const bool masked =
          plan_.key_padding_mask != nullptr && plan_.key_padding_mask[b * plan_.L + i] != 0;
      clusters[i] = -1;
      if (!masked) tokens_.push_back(i);
    }
    const auto n = static_cast<int64_t>(tokens_.size());
    std::fill(count_.begin(), count_.end(), 0);
    for (int64_t c = 0; c < plan_.C && n > 0; ++c) {
      read_row(plan_.x, tokens_[static_cast<size_t>(n * c / plan_.C)], means_.data() + c * plan_.D);
    }
    for (int64_t round = 0; n > 0; ++round) {
      pack_centres(/*filled_only=*/false);
      const bool last = round == plan_.iterations;
      std::fill(count_.begin(), count_.end(), 0);
      std::fill(sums_.begin(), sums_.end(), 0.0);
      for (int64_t first = 0; first < n; first += kTokens) {
        const int64_t size = std::min(kTokens, n - first);
        const int64_t* places = tokens_.data() + first;
        find_nearest(plan_.x, places, size);
        for (int64_t r = 0; r < size; ++r) {
          const int64_t c = static_cast<int64_t>(best_[r]);
          clusters[places[r]] = c;
          ++count_[static_cast<size_t>(c)];
          if (!last) add_token(r, sums_.data() + c * plan_.D);
        }
      }
      if (last) break;
      for (int64_t j = 0; j < plan_.C * plan_.D; ++j) {
        const int64_t count = count_[static_cast<size_t>(j / plan_.D)];
        if (count > 0) {
          means_[static_cast<size_t>(j)] =
              static_cast<float>(sums_[static_cast<size_t>(j)] / static_cast<double>(count));
        }
      }
    }
    if (plan_.has_queries) find_queries(segment, n > 0);
  }

 private:
  void place(ScratchLayout& layout) {
    centres_ = {layout.take(panel_floats(plan_.C, plan_.D)), plan_.C};
    half_norm_ = layout.take(plan_.C);
    packed_ = {layout.take(panel_floats(kTokens, plan_.D)), kTokens};
    columns_ = {layout.take(panel_floats(plan_.D, kTokens)), plan_.D};
    scores_ = layout.take(panel_floats(kCentres, 1));
    top_ = layout.take(kTokens);
    best_ = layout.take(kTokens);
  }

  void read_row(const InputRows& rows, int64_t i, float* to) const {
    copy_row(rows.row(b_, h_, i), plan_.D, to);
  }

  void pack_centres(bool filled_only) {
    pack_rows(static_cast<const float*>(means_.data()), plan_.D, plan_.C, plan_.D, 1.0f, nullptr,
              centres_);
    for (int64_t c = 0; c < plan_.C; ++c) {
      double square = 0;
      for (int64_t d = 0; d < plan_.D; ++d) {
        const double x = means_[static_cast<size_t>(c * plan_.D + d)];
        square += x * x;
      }
      const bool left_out = filled_only && count_[static_cast<size_t>(c)] == 0;
      half_norm_[c] =
          left_out ? std::numeric_limits<float>::infinity() : static_cast<float>(square / 2);
    }
  }

  /// best_[r]: the centre next to the token at places[r].
  HWY_NOINLINE void find_nearest(const InputRows& rows, const int64_t* places, int64_t size) {
    for (int64_t r = 0; r < size;) {
      int64_t run = 1;
      while (r + run < size && places[r + run] == places[r] + run) ++run;
      pack_rows(rows.row(b_, h_, places[r]), rows.strides[2], run, plan_.D, 1.0f, nullptr,
                {packed_.at(r, 0), kTokens});
      r += run;
    }
    if (size < kTokens) std::fill_n(columns_.data, panel_floats(plan_.D, kTokens), 0.0f);
    transpose(packed_, size, plan_.D, columns_);
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t NR = panel_width();
    std::fill_n(top_, kTokens, -std::numeric_limits<float>::infinity());
    std::fill_n(best_, kTokens, 0.0f);
    for (int64_t first = 0; first < plan_.C; first += kCentres) {
      const int64_t count = std::min(kCentres, plan_.C - first);
      for (int64_t x = 0; x < size; x += NR) {
        multiply_rows<false>(count, centres_.at(first, 0), centres_.stride(),
                             columns_.at(0, x / NR), nullptr, scores_, plan_.D);
        for (int64_t half = 0; half < NR; half += N) {
          Vector top = hn::LoadU(d, top_ + x + half);
          Vector best = hn::LoadU(d, best_ + x + half);
          for (int64_t r = 0; r < count; ++r) {
            const Vector score =
                hn::Sub(hn::LoadU(d, scores_ + r * NR + half), hn::Set(d, half_norm_[first + r]));
            const auto better = hn::Gt(score, top);
            top = hn::IfThenElse(better, score, top);
            // Exact: a float holds every number of a centre.
            best = hn::IfThenElse(better, hn::Set(d, static_cast<float>(first + r)), best);
          }
          hn::StoreU(top, d, top_ + x + half);
          hn::StoreU(best, d, best_ + x + half);
        }
      }
    }
  }

  /// sum += the packed token r.
  void add_token(int64_t r, double* sum) const {
    const int64_t NR = panel_width();
    for (int64_t c = 0; c < plan_.D; c += NR) {
      const float* from = packed_.at(r, c / NR);
      const int64_t width = std::min(NR, plan_.D - c);
      for (int64_t j = 0; j < width; ++j) sum[c + j] += static_cast<double>(from[j]);
    }
  }

  void find_queries(const Segment& segment, bool any) {
    int64_t* nearest = plan_.nearest + (b_ * plan_.H + h_) * plan_.L;
    std::fill(nearest + segment.k_begin, nearest + segment.k_end, 0);
    if (!any) return;
    pack_centres(/*filled_only=*/true);
    int64_t places[kTokens];
    for (int64_t first = segment.k_begin; first < segment.k_end; first += kTokens) {
      const int64_t size = std::min(kTokens, segment.k_end - first);
      for (int64_t r = 0; r < size; ++r) places[r] = first + r;
      find_nearest(plan_.queries, places, size);
      for (int64_t r = 0; r < size; ++r) nearest[first + r] = static_cast<int64_t>(best_[r]);
    }
  }

  const KMeansPlan& plan_;
  int64_t b_ = 0, h_ = 0;
  std::vector<int64_t> tokens_;  ///< places of those that take part
  std::vector<float> means_;     ///< [C, D]
  std::vector<double> sums_;     ///< [C, D]
  std::vector<int64_t> count_;   ///< [C]
  Panels centres_;               ///< [C, D]
  float* half_norm_;             ///< [C] |c|^2 / 2; infinite for a centre out of play
  Panels packed_;                ///< [kTokens, D]
  Panels columns_;               ///< [D, kTokens]
  float* scores_;                ///< [kCentres, NR]
  float* top_;                   ///< [kTokens] the largest scores
  float* best_;                  ///< [kTokens] whose they are
};

void run_kmeans(const KMeansPlan& plan) {
  const auto segments = static_cast<int64_t>(plan.segments.size());
  parallel_for(plan.B * plan.H * segments, [&](int64_t task) {
    const int64_t row = task / segments;
    HeadClusters(plan).run(row / plan.H, row % plan.H,
                           plan.segments[static_cast<size_t>(task % segments)]);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_kmeans);

void kmeans_kernel(const KMeansPlan& plan) {
  HWY_DYNAMIC_DISPATCH(run_kmeans)(plan);
}

template <class T>
void kmeans(const KMeansParams& params, View4<const T> x, int64_t* clusters, View4<const T> queries,
            int64_t* nearest) {
  const char* op = "kmeans";
  check_view(op, "x", x);
  const auto [B, H, L, D] = x.sizes;
  FAVOR_CHECK(D >= 1, op, ": x has shape ", shape_string(x), ", expected a head dim D >= 1");
  constexpr int64_t kMost = int64_t{1} << 24;  // the whole numbers that a float counts
  FAVOR_CHECK(params.num_clusters >= 1 && params.num_clusters <= kMost, op, ": num_clusters is ",
              params.num_clusters, ", expected 1 to ", kMost);
  FAVOR_CHECK(params.iterations >= 0, op, ": iterations is ", params.iterations,
              ", expected 0 or more");
  checked_product(op, {params.num_clusters, D + 64, int64_t{16}});
  const bool has_queries = queries.data != nullptr;
  if (has_queries) check_shape(op, "queries", queries, x.sizes, "as x");
  const bool empty = B * H * L == 0;
  FAVOR_CHECK(clusters != nullptr || empty, op, ": clusters is null, expected [B, H, L] numbers");
  FAVOR_CHECK(nearest != nullptr || !has_queries, op,
              ": nearest is null, expected [B, H, L] numbers (queries are given)");
  if (!params.cu_seqlens.empty()) check_offsets(op, "cu_seqlens", params.cu_seqlens, L);
  if (empty) return;
  if constexpr (std::is_same_v<T, double>) {
    reference::kmeans(params, x, clusters, queries, nearest);
  } else {
    apply_isa_limit();
    num_threads();  // a wrong FAVOR_NUM_THREADS is reported before any work
    KMeansPlan plan{B,
                    H,
                    L,
                    D,
                    params.num_clusters,
                    params.iterations,
                    params.key_padding_mask,
                    {},
                    x,
                    queries,
                    has_queries,
                    clusters,
                    nearest};
    if (params.cu_seqlens.empty()) plan.segments.push_back({0, L, 0, L});
    for (size_t n = 1; n < params.cu_seqlens.size(); ++n) {
      const int64_t begin = params.cu_seqlens[n - 1], end = params.cu_seqlens[n];
      plan.segments.push_back({begin, end, begin, end});
    }
    kmeans_kernel(plan);
  }
}

#define FAVOR_INSTANTIATE(T) \
  template void kmeans<T>(const KMeansParams&, View4<const T>, int64_t*, View4<const T>, int64_t*);
FAVOR_INSTANTIATE(float)
FAVOR_INSTANTIATE(bfloat16)
FAVOR_INSTANTIATE(float16)
FAVOR_INSTANTIATE(double)
#undef FAVOR_INSTANTIATE

}  // namespace favor
#endif  // HWY_ONCE
