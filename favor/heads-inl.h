// SPDX-License-Identifier: Apache-2.0
// The heads of a call: constants, packed matrices, and what is fitted to or measured on an item's
// tokens before anything is computed from them.

// clang-format off
#if defined(FAVOR_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_HEADS_INL_H_
#undef FAVOR_HEADS_INL_H_
#else
#define FAVOR_HEADS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "favor/fitted_map.h"
#include "favor/item_moments.h"
#include "favor/tokens-inl.h"
#include "hwy/aligned_allocator.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Largest logits of n packed tokens, one per row; `top` [n]. buffer: of project().
inline HWY_NOINLINE void largest_logits(const HeadPlan& head, const MapSide& side,
                                        const Panels& tokens, int64_t n, float* buffer,
                                        float* HWY_RESTRICT top) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  std::fill_n(top, n, -std::numeric_limits<float>::infinity());
  for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
    const float* u = project(head, side, tokens, n, panel, buffer);
    for (int64_t half = 0; half < NR && panel * NR + half < head.M; half += N) {
      const int64_t width = std::min(N, head.M - panel * NR - half);
      const auto valid = hn::FirstN(d, static_cast<size_t>(width));
      const Vector shift =
          side.shift == nullptr ? hn::Zero(d) : hn::LoadU(d, side.shift + panel * NR + half);
      for (int64_t r = 0; r < n; ++r) {
        const Vector logit = hn::Add(hn::LoadU(d, u + r * NR + half), shift);
        const Vector least = hn::Set(d, -std::numeric_limits<float>::infinity());
        const Vector kept = hn::IfThenElse(valid, logit, least);
        top[r] = std::max(top[r], hn::GetLane(hn::MaxOfLanes(d, kept)));
      }
    }
  }
}

/// A head without its matrices and vectors.
inline HeadPlan head_constants(const Plan<float>& plan) {
  const double log2e = std::numbers::log2e;
  const double root = std::sqrt(plan.scale);
  const FeatureMapKind map = plan.feature_map;
  const bool trig = map == FeatureMapKind::kTrig;
  const bool has_norm = estimates_softmax(map);
  HeadPlan head = HeadPlan();
  head.map = map;
  head.log_linear = is_log_linear(map);
  head.identity = plan.projection == nullptr && plan.structured == nullptr;
  head.renormalize = plan.renormalize;
  head.has_floor = head.log_linear && plan.eps > 0;
  head.official = plan.official && head.has_floor;
  // Beside exact scores, estimates need what cancels among themselves.
  const bool needs_constants = !head.renormalize || plan.window > 0;
  head.whole_queries = needs_constants || head.has_floor;
  head.keeps_slopes = head.has_floor || (!head.log_linear && map != FeatureMapKind::kRelu);
  head.D = plan.D;
  head.E = plan.E;
  head.M = plan.M;
  head.token_scale =
      static_cast<float>((head.log_linear ? log2e : 1.0) * (head.identity ? root : 1.0));
  head.out_scale = static_cast<float>(head.identity ? root : 1.0);
  const double norm_sign = !has_norm ? 0.0 : trig ? -1.0 : 1.0;
  head.half_norm = static_cast<float>(norm_sign * 0.5 * plan.scale * log2e);
  head.norm_gradient = static_cast<float>(norm_sign * plan.scale);
  head.eps = static_cast<float>(plan.eps);
  head.eps_border = static_cast<float>(plan.eps * (1 + 0x1p-21));
  head.eps_active = static_cast<float>(plan.eps * (1 + 0x1p-20));
  if (head.has_floor) {
    head.key.floor = head.query.floor = static_cast<float>(std::log2(plan.eps));
  }
  if (needs_constants && map != FeatureMapKind::kExp && has_norm) {
    const double features = static_cast<double>(trig ? plan.rows : plan.M);
    const auto constant = static_cast<float>(-std::log2(features));
    head.query.constant = constant;
    if (!head.official) {
      head.query.floor += constant;
    }
  }
  return head;
}

class HeadPlans {
 public:
  explicit HeadPlans(const Plan<float>& plan) : plan_(plan), common_(head_constants(plan)) {
    fitted_to_items_ = is_fitted(plan.feature_map) && plan.map_parameters == nullptr;
    ScratchLayout measure;
    place(measure, common_);
    head_floats_ = measure.used();
    if (fitted_to_items_) {
      return;
    }
    const int64_t sets = plan.map_parameters == nullptr ? 1 : plan.num_map_parameter_sets;
    const int64_t count = std::max(plan.P, sets);
    memory_ = allocate_floats(count * head_floats_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t numbers = num_map_parameters(plan.feature_map, plan.D);
      std::vector<double> parameters;
      if (plan.map_parameters != nullptr) {
        const float* from = plan.map_parameters + (sets == 1 ? 0 : i * numbers);
        parameters.assign(from, from + numbers);
      }
      ScratchLayout layout(memory_.get() + i * head_floats_);
      heads_.push_back(make_head(i, parameters, layout));
    }
  }

  /// Whether every item has a head of its own, made from its tokens.
  bool depend_on_items() const { return fitted_to_items_ || common_.official; }
  /// Sizes and constants that are the same for all heads.
  const HeadPlan& common() const { return common_; }
  /// Scratch of make_item_head beside what the head keeps.
  int64_t scratch_floats() const {
    if (!common_.official) {
      return 0;
    }
    ScratchLayout layout;
    ItemScratch().place(layout, common_);
    return layout.used();
  }
  /// Floats that an item's own head keeps.
  int64_t head_floats() const { return fitted_to_items_ ? head_floats_ : 0; }

  /// The head of key head g, where heads do not depend on items.
  const HeadPlan& operator[](int64_t g) const {
    return heads_[heads_.size() == 1 ? 0 : static_cast<size_t>(g)];
  }

  bool fitted_to_items() const { return fitted_to_items_; }

  /// The head of an item with a map fitted to `moments`; `kept` as below.
  HeadPlan item_head(const Item& item, const Moments& moments, ScratchLayout& kept) const {
    return make_head(item.g, moments.fit(plan_.feature_map), kept);
  }

  /// The head of an item, which `kept` has the memory of as long as it is used. What follows in
  /// `kept`, scratch_floats() long, is overwritten.
  HeadPlan item_head(const Item& item, ScratchLayout& kept) const {
    if (!depend_on_items()) {
      return (*this)[item.g];
    }
    if (fitted_to_items_) {
      return item_head(item, item_moments(plan_, item), kept);
    }
    ScratchLayout scratch = kept;
    ItemScratch space;
    space.place(scratch, common_);
    HeadPlan head = (*this)[item.g];
    head.key.floor += largest_key_logit(head, item, space);
    return head;
  }

 private:
  struct ItemScratch {
    KeyChunk keys;
    float* buffer;  ///< of project()
    float* row;     ///< [C]

    void place(ScratchLayout& layout, const HeadPlan& head) {
      keys.place(layout, head, kChunk);
      buffer = layout.take(logit_floats(head));
      row = layout.take(kChunk);
    }
  };

  bool shares_matrix() const { return plan_.feature_map != FeatureMapKind::kFavorSharpDiagonal; }

  /// Memory of a head's matrices and vectors.
  void place(ScratchLayout& layout, HeadPlan& head) const {
    if (!head.identity) {
      place(layout, head.query.matrix);
      if (shares_matrix()) {
        head.key.matrix = head.query.matrix;
      } else {
        place(layout, head.key.matrix);
      }
    }
    const int64_t M = num_panels(head.M) * panel_width();
    const int64_t D = num_panels(head.D) * panel_width();
    if (head.map == FeatureMapKind::kTrig) {
      head.quarters = layout.take(M);
    }
    if (is_fitted(head.map) || (head.log_linear && head.query.constant != 0.0f)) {
      head.query.shift = layout.take(M);
    }
    if (!shares_matrix()) {
      head.query.norm = layout.take(D);
      head.key.norm = layout.take(D);
    }
  }

  void place(ScratchLayout& layout, Matrix& matrix) const {
    if (plan_.structured != nullptr) {
      matrix.hadamard.signs = layout.take(HadamardMatrix::floats(plan_.structured[0]));
      matrix.hadamard.size = plan_.structured[0].block_rows;
      matrix.hadamard.features = HadamardMatrix::padded_features(plan_.structured[0]);
      return;
    }
    matrix.columns = {layout.take(panel_floats(plan_.D, plan_.M)), plan_.D};
    matrix.rows = {layout.take(panel_floats(plan_.M, plan_.D)), plan_.M};
  }

  /// Head g with the parameters of its map.
  HeadPlan make_head(int64_t g, const std::vector<double>& parameters,
                     ScratchLayout& layout) const {
    HeadPlan head = common_;
    place(layout, head);
    const int64_t M = num_panels(head.M) * panel_width();
    const int64_t R = plan_.rows;
    if (head.quarters != nullptr) {
      auto* quarters = const_cast<float*>(head.quarters);
      std::fill_n(quarters, M, 1.0f);
      std::fill_n(quarters, R, 0.0f);
    }
    if (head.query.shift != nullptr) {
      std::fill_n(const_cast<float*>(head.query.shift), M, head.query.constant);
    }
    if (head.identity) {
      return head;
    }
    const int64_t p = plan_.P == 1 ? 0 : g;
    const auto root = static_cast<float>(std::sqrt(plan_.scale));
    if (plan_.structured != nullptr) {
      head.query.matrix.hadamard =
          pack_hadamard(plan_.structured[p], root, head.query.matrix.hadamard.signs);
      head.key.matrix = head.query.matrix;
      return head;
    }
    const float* rows = plan_.projection + p * R * head.D;
    if (is_fitted(head.map)) {
      set_fitted(rows, parameters, head);
      return head;
    }
    const Matrix& matrix = head.query.matrix;
    pack_rows(rows, head.D, R, head.D, root, nullptr, matrix.rows);
    if (R < head.M) {
      const float sign = head.map == FeatureMapKind::kHyperbolic ? -1.0f : 1.0f;
      pack_rows(rows, head.D, R, head.D, sign * root, nullptr,
                Panels{matrix.rows.at(R, 0), matrix.rows.rows});
    }
    set_columns(matrix);
    return head;
  }

  void set_columns(const Matrix& matrix) const {
    std::fill_n(matrix.columns.data, panel_floats(plan_.D, plan_.M), 0.0f);
    transpose(matrix.rows, plan_.M, plan_.D, matrix.columns);
  }

  void set_fitted(const float* rows, const std::vector<double>& parameters, HeadPlan& head) const {
    const LogLinearMap map =
        make_log_linear_map(head.map, rows, head.M, head.D, std::span<const double>(parameters));
    const double root = std::sqrt(plan_.scale);
    std::vector<float> row_major(static_cast<size_t>(head.M * head.D));
    const auto pack = [&](const std::vector<double>& from, const Matrix& to) {
      std::transform(from.begin(), from.end(), row_major.begin(),
                     [root](double x) { return static_cast<float>(root * x); });
      pack_rows(row_major.data(), head.D, head.M, head.D, 1.0f, nullptr, to.rows);
      set_columns(to);
    };
    pack(map.query_rows, head.query.matrix);
    if (!shares_matrix()) {
      pack(map.key_rows, head.key.matrix);
      const auto copy = [&](const std::vector<double>& from, const float* to) {
        auto* weights = const_cast<float*>(to);
        std::fill_n(weights, num_panels(head.D) * panel_width(), 0.0f);
        const double token_scale = head.token_scale;
        const double factor = 0.5 * plan_.scale * std::numbers::log2e / (token_scale * token_scale);
        std::transform(from.begin(), from.end(), weights,
                       [factor](double x) { return static_cast<float>(factor * x); });
      };
      copy(map.query_norm, head.query.norm);
      copy(map.key_norm, head.key.norm);
    }
    // What all features have in common cancels in a ratio.
    const bool cancels = head.renormalize && plan_.window == 0;
    const double common = cancels ? map.query_constant[0] : 0.0;
    std::transform(
        map.query_constant.begin(), map.query_constant.end(), const_cast<float*>(head.query.shift),
        [common](double x) { return static_cast<float>(std::numbers::log2e * (x - common)); });
  }

  /// The largest logit of an item's keys.
  float largest_key_logit(const HeadPlan& head, const Item& item,
                          const ItemScratch& scratch) const {
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t j = item.segment.k_begin; j < item.segment.k_end; j += kChunk) {
      const int64_t n = std::min(kChunk, item.segment.k_end - j);
      scratch.keys.load(plan_, head, item, j, n);
      largest_logits(head, head.key, scratch.keys.tokens, n, scratch.buffer, scratch.row);
      for (int64_t r = 0; r < n; ++r) {
        if (scratch.keys.offset[r] != std::numeric_limits<float>::infinity()) {
          top = std::max(top, scratch.row[r]);
        }
      }
    }
    return top;
  }

  const Plan<float>& plan_;
  HeadPlan common_;
  bool fitted_to_items_;
  int64_t head_floats_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  std::vector<HeadPlan> heads_;
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_HEADS_INL_H_
