// SPDX-License-Identifier: Apache-2.0
#include "favor/item_moments.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "favor/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/item_moments.cpp"
#include "hwy/foreach_target.h"
#include "favor/tokens-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// to += from, in double.
HWY_NOINLINE void add_widened(const float* HWY_RESTRICT from, int64_t count,
                              double* HWY_RESTRICT to) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    const auto wide = hn::PromoteTo(d, hn::LoadU(narrow, from + i));
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), wide), d, to + i);
  }
  for (; i < count; ++i) {
    to[i] += static_cast<double>(from[i]);
  }
}

/// Sums over tokens that come in chunks.
class TokenSweep {
 public:
  TokenSweep(int64_t D, bool full)
      : D_(D),
        width_(num_panels(D) * panel_width()),
        full_(full),
        sum_(static_cast<size_t>(width_)),
        square_(static_cast<size_t>(full ? width_ * D : width_)) {
    ScratchLayout measure;
    place(measure);
    memory_ = allocate_floats(measure.used());
    ScratchLayout layout(memory_.get());
    place(layout);
  }

  /// Adds n rows; those whose `skip` is set are not read.
  void add(const InputElements& rows, int64_t stride, int64_t n, const uint8_t* skip) {
    pack_rows(rows, stride, n, D_, 1.0f, skip, tokens_);
    add_vectors(n);
    for (int64_t panel = 0; full_ && panel < num_panels(D_); ++panel) {
      // Columns of later panels than a row's own are enough of a symmetric matrix.
      const int64_t rows_left = std::min((panel + 1) * panel_width(), D_);
      const Panels columns{tokens_.at(0, panel), tokens_.rows};
      const Panels out{products_.at(0, panel), products_.rows};
      std::fill_n(out.data, rows_left * panel_width(), 0.0f);
      multiply_transposed(tokens_, columns, out, out, rows_left, 1, n);
      add_widened(out.data, rows_left * panel_width(), square_.data() + panel * products_.stride());
    }
    count_ += n - std::count_if(skip, skip + n, [](uint8_t x) { return x != 0; });
  }

  /// The sums of all tokens since the last call.
  TokenSums take() {
    TokenSums sums{count_, {sum_.begin(), sum_.begin() + D_}, {}};
    if (full_) {
      sums.square.resize(static_cast<size_t>(D_ * D_));
      const int64_t NR = panel_width();
      for (int64_t i = 0; i < D_; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t at = (i / NR * products_.rows + j) * NR + i % NR;
          sums.square[static_cast<size_t>(i * D_ + j)] = square_[static_cast<size_t>(at)];
        }
      }
    } else {
      sums.square.assign(square_.begin(), square_.begin() + D_);
    }
    count_ = 0;
    std::fill(sum_.begin(), sum_.end(), 0.0);
    std::fill(square_.begin(), square_.end(), 0.0);
    return sums;
  }

 private:
  void place(ScratchLayout& layout) {
    tokens_ = {layout.take(panel_floats(kChunk, D_)), kChunk};
    if (full_) {
      products_ = {layout.take(panel_floats(D_, D_)), D_};
    }
  }

  /// The sums, and without whole matrices the squares, in double: they cost little.
  HWY_NOINLINE void add_vectors(int64_t n) {
    const hn::ScalableTag<double> d;
    const hn::Rebind<float, decltype(d)> narrow;
    const auto N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t NR = panel_width();
    for (int64_t c = 0; c < width_; c += N) {
      const float* HWY_RESTRICT x = tokens_.at(0, c / NR) + c % NR;
      auto sum = hn::LoadU(d, sum_.data() + c);
      auto square = hn::Zero(d);
      for (int64_t r = 0; r < n; ++r) {
        const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + r * NR));
        sum = hn::Add(sum, value);
        square = hn::MulAdd(value, value, square);
      }
      hn::StoreU(sum, d, sum_.data() + c);
      if (!full_) {
        hn::StoreU(hn::Add(square, hn::LoadU(d, square_.data() + c)), d, square_.data() + c);
      }
    }
  }

  int64_t D_, width_;
  bool full_;
  std::vector<double> sum_, square_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  Panels tokens_{}, products_{};
  int64_t count_ = 0;
};

void run_item_moments(const Plan<float>& plan, const Item& item, int64_t part, int64_t parts,
                      Moments& moments) {
  TokenSweep sweep(plan.D, plan.feature_map == FeatureMapKind::kFavorSharp);
  const double root = std::sqrt(plan.scale);
  uint8_t skip[kChunk];
  const auto sum_up = [&](const InputRows& from, int64_t h, int64_t begin, int64_t end,
                          bool masked) {
    // Whole chunks, whatever the number of parts.
    const int64_t blocks = (end - begin + kChunk - 1) / kChunk;
    const int64_t first = begin + blocks * part / parts * kChunk;
    const int64_t last = std::min(begin + blocks * (part + 1) / parts * kChunk, end);
    for (int64_t j = first; j < last; j += kChunk) {
      const int64_t n = std::min(kChunk, last - j);
      for (int64_t r = 0; r < n; ++r) {
        skip[r] = masked && !plan.allows_key(item.b, item.g, j + r) ? 1 : 0;
      }
      sweep.add(from.row(item.b, h, j), from.strides[2], n, skip);
    }
  };
  const Segment& segment = item.segment;
  sum_up(plan.k, item.g, segment.k_begin, segment.k_end, true);
  moments.add_keys(sweep.take(), root);
  for (int64_t h = item.first_head; h < item.last_head; ++h) {
    sum_up(plan.q, h, segment.q_begin, segment.q_end, plan.L == plan.S);
  }
  moments.add_queries(sweep.take(), root);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_item_moments);

namespace {

/// Adds part `part` of `parts` of an item's tokens.
void add_item(const Plan<float>& plan, int64_t item, int64_t part, int64_t parts,
              Moments& moments) {
  HWY_DYNAMIC_DISPATCH(run_item_moments)(plan, Item(plan, item), part, parts, moments);
}

/// Sums over `count` groups of tokens, each taken in parts by add(group, part, parts, moments). How
/// many parts depends on the shape alone, and they are merged in order.
template <class Add>
std::vector<Moments> sum_groups(const Plan<float>& plan, int64_t count, const Add& add) {
  constexpr int64_t kWantedTasks = 64, kSmallestPart = 4096;
  const int64_t parts = std::clamp<int64_t>(std::max(plan.L, plan.S) / kSmallestPart, 1,
                                            kWantedTasks / std::clamp<int64_t>(count, 1, 64));
  const Moments none(plan.D, plan.feature_map == FeatureMapKind::kFavorSharp);
  std::vector<Moments> all(static_cast<size_t>(count * parts), none), sums;
  parallel_for(count * parts, [&](int64_t task) {
    add(task / parts, task % parts, parts, all[static_cast<size_t>(task)]);
  });
  for (int64_t task = 0; task < count * parts; ++task) {
    Moments& moments = all[static_cast<size_t>(task)];
    if (task % parts == 0) {
      sums.push_back(std::move(moments));
    } else {
      sums.back().merge(moments);
    }
  }
  return sums;
}

}  // namespace

Moments item_moments(const Plan<float>& plan, const Item& item) {
  Moments moments(plan.D, plan.feature_map == FeatureMapKind::kFavorSharp);
  HWY_DYNAMIC_DISPATCH(run_item_moments)(plan, item, 0, 1, moments);
  return moments;
}

std::vector<Moments> all_item_moments(const Plan<float>& plan) {
  return sum_groups(plan, plan.num_items(),
                    [&](int64_t item, int64_t part, int64_t parts, Moments& moments) {
                      add_item(plan, item, part, parts, moments);
                    });
}

std::vector<Moments> head_moments(const Plan<float>& plan) {
  return sum_groups(plan, plan.G, [&](int64_t g, int64_t part, int64_t parts, Moments& moments) {
    for (int64_t item = 0; item < plan.num_items(); ++item) {
      if (Item(plan, item).g == g) add_item(plan, item, part, parts, moments);
    }
  });
}

}  // namespace favor
#endif  // HWY_ONCE
