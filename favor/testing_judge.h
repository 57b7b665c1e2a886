// SPDX-License-Identifier: Apache-2.0
// The rule that judges a kernel by the error of the naive float code.
#ifndef FAVOR_TESTING_JUDGE_H_
#define FAVOR_TESTING_JUDGE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "favor/cancellation.h"
#include "favor/kinks.h"
#include "favor/testing_errors.h"
#include "favor/testing_feature_terms.h"
#include "favor/testing_runs.h"

namespace favor::test {

inline bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

/// Calls function(params, q, k) with a problem's call in double.
template <class Function>
auto with_doubles(const Problem& p, const Function& function) {
  const Case& c = p.spec;
  const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
  const Params<double> params(p);
  return function(params.value, contiguous_view<const double>(q.data(), c.B, c.H, c.L, c.D),
                  contiguous_view<const double>(k.data(), c.B, c.G(), c.S, c.D));
}

/// largest_cancellation of a problem whose map has negative features; 1 for all others.
inline double cancellation(const Problem& p) {
  switch (p.spec.feature_map) {
    case FeatureMapKind::kTrig:
    case FeatureMapKind::kGelu:
    case FeatureMapKind::kTanh:
    case FeatureMapKind::kCos:
    case FeatureMapKind::kSin:
    case FeatureMapKind::kIdentity:
      break;
    default:
      return 1;
  }
  return with_doubles(
      p, [&](const AttentionParams<double>& params, View4<const double> q, View4<const double> k) {
        return largest_cancellation(params, q, k, p.spec.causal);
      });
}

/// What a kernel's results are held against; computed once per problem.
///
/// The naive errors are the largest of several problems that differ in the last digits of q, k and
/// v: on one small problem alone, float code can be right by luck far below its usual error.
struct Judge {
  /// Logarithms, base 2, below which their rounding is no more than that of a few operations; those
  /// of fitted maps are small differences of large terms.
  static constexpr double kLargeLogarithm = 32;
  static constexpr double kFittedLogarithm = 16;

  KinkRows kinks;  ///< rows of dq and dk that are not judged
  Results<double> truth;
  Results<double> terms;  ///< see run_reference
  ErrorSize out, dq, dk, dv;
  ElementType element = ElementType::kFloat32;
  int64_t head_dim = 0;
  bool compare_gradients = true;
  double chunk_rounding = 0, cancelled = 0;
  // Results of 16 bits are rounded once more. The naive results are rounded too, but on a small
  // problem they may be luckier than half a spacing.
  double storage_rounding = 0;
  double transform_rounding = 0;
  // Weights of the backward pass are exponentials of differences from a row's logarithm: that and
  // the difference are rounded to half a spacing. Naive code divides, or has a row's one large
  // weight right whatever its logarithm. Sums that are not divided are such exponentials too.
  double rounding_of_weights = 0, rounding_of_outputs = 0;

  explicit Judge(const Problem& p, Passes passes = Passes::kBoth)
      : truth(run_reference<double>(p, passes)),
        element(p.spec.element),
        head_dim(p.spec.D),
        // Beyond, attention is one-hot and float gradients are mostly cancellation. Fitted maps
        // multiply logits by sqrt(1 - 4A), which is large when the norm is.
        compare_gradients(passes == Passes::kBoth &&
                          p.spec.norm <= (is_fitted(p.spec.feature_map) ? 4 : 8)),
        storage_rounding(rounding_unit(p.spec.element)) {
    if (!compare_gradients) passes = Passes::kForward;
    kinks = kinks_of(p);
    // A chunk's stabilisers know its later keys, so exponents reach down to -126 in base 2, where
    // each of key and query is rounded by up to 2^-18 log(2): 5.3e-6 together at the worst, and
    // less on the average of features. The naive code has the token's own stabilisers. Only large
    // norms go that far.
    if (p.spec.causal && p.spec.norm >= 8) chunk_rounding = 4e-6;
    if (p.spec.structured) {
      transform_rounding = transform_error(p.spec) * with_doubles(p, largest_steepness);
    }
    // Products of bfloat16 numbers round each weight, which moves the output relative to the mean
    // of |v|, however much of it cancels.
    const bool rounds_weights = element == ElementType::kBfloat16;
    if (compare_gradients || rounds_weights) terms = run_reference<double>(p, Passes::kTerms);
    if (!rounds_weights) terms.out_terms.clear();
    if (compare_gradients && (rounds_operands(p.spec) || has_opposite_rows(p.spec))) {
      add_feature_terms(p, terms);
    }
    // Each denominator's rounding, and what its weights err by, are relative to the size of its
    // terms. Sines of large angles err by the rounding of the angle.
    const double size = cancellation(p);
    const bool has_angles = p.spec.feature_map == FeatureMapKind::kTrig ||
                            p.spec.feature_map == FeatureMapKind::kCos ||
                            p.spec.feature_map == FeatureMapKind::kSin;
    const double angle = has_angles ? std::max(1.0, logit_size(p.spec)) : 1;
    cancelled = 4 * std::numeric_limits<float>::epsilon() * (size - 1) * angle;
    transform_rounding *= size;
    add(run_reference<float>(p, passes), truth, kinks);
    const Case& c = p.spec;
    const bool fitted = is_fitted(c.feature_map);
    if (truth.largest_log_sum > kLargeLogarithm || fitted) {
      rounding_of_weights =
          rounding_of_exponent(std::max(truth.largest_log_sum, fitted ? kFittedLogarithm : 0.0));
      // Beyond this norm attention is one-hot, or a choice between few that such errors decide.
      if (c.norm > 8) rounding_of_outputs = rounding_of_weights;
    }
    if (!c.renormalize && is_log_linear(c.feature_map)) {
      double largest = 1;
      for (const double sum : truth.out) largest = std::max(largest, std::abs(sum));
      rounding_of_outputs = rounding_of_exponent(std::log2(largest));
      rounding_of_weights = std::max(rounding_of_weights, rounding_of_outputs);
    }
    if (c.B * c.H * (c.L + c.S) * c.M * (c.D + c.E) > 100'000'000) return;
    // Sums behind a fitted map differ in their last digits too, and its logits multiply that.
    widen(p, 0, is_fitted(c.feature_map) ? 6 : 2);
  }

  /// Takes more problems near `p` into account, numbers [begin, end): among thousands of random
  /// cases there are some where three naive results are all lucky.
  void widen(const Problem& p, uint64_t begin, uint64_t end) {
    const Passes passes = compare_gradients ? Passes::kBoth : Passes::kForward;
    for (uint64_t i = begin; i < end; ++i) {
      Problem other = p;
      RandomStream rng(p.spec.seed, 100 + i);
      for (std::vector<float>* x : {&other.q, &other.k, &other.v}) {
        for (float& value : *x) value *= static_cast<float>(1 + 1e-5 * rng.normal());
      }
      add(run_reference<float>(other, passes), run_reference<double>(other, passes),
          kinks_of(other));
    }
  }

  /// The root mean square of logits.
  static double logit_size(const Case& c) {
    const double D = static_cast<double>(c.D);
    const double softmax_scale = estimates_softmax(c.feature_map) ? 1 / std::sqrt(D) : 1;
    const double row = c.projection == ProjectionUse::kNone ? 1 : D;  // squared norm of a row of W
    return c.norm * std::sqrt(row * c.scale.value_or(softmax_scale));
  }

  /// What fast transforms may add to the error of a query's and a key's logits, and so, relatively,
  /// to that of a weight: each of their 3 log2(n) additions rounds numbers of the size of the
  /// logits by 2^-25 rms of it at most. Four standard deviations of both together, for there are
  /// many logits. The naive products can be right by luck where there are few.
  static double transform_error(const Case& c) {
    const double stages = 2 * 3 * std::ceil(std::log2(static_cast<double>(c.D)));
    return 4 * 0x1p-25 * std::sqrt(stages) * logit_size(c);
  }

  /// What 2^x and 2^(x - y) may err by, relatively, where x is a float of this size.
  static double rounding_of_exponent(double size) { return 2 * 0x1p-24 * std::numbers::ln2 * size; }

  /// Empty if the results pass, else what is wrong with them.
  std::string verdict(const Results<float>& r) const {
    std::string wrong;
    const auto check = [&](const char* name, const std::vector<float>& kernel,
                           const ErrorSize& naive, const std::vector<double>& exact,
                           const std::vector<double>& scale, double extra) {
      const ErrorRatio e =
          error_ratio(saturated(element, kernel), naive, saturated(element, exact), scale, extra);
      if (!(e.ratio <= 1)) {
        wrong += message(name, " errs ", e.ratio, " times what is allowed (", e.kernel,
                         ", naive float ", e.naive, "); ");
      }
    };
    const double rounding = storage_rounding + transform_rounding + cancelled;
    check("out", r.out, out, truth.out, terms.out_terms,
          chunk_rounding + rounding + rounding_of_outputs);
    if (compare_gradients) {
      check("dq", without(r.dq, truth.dq, kinks.queries), dq, truth.dq, terms.dq,
            rounding + rounding_of_weights);
      check("dk", without(r.dk, truth.dk, kinks.keys), dk, truth.dk, terms.dk,
            rounding + rounding_of_weights);
      check("dv", r.dv, dv, truth.dv, terms.dv, rounding + rounding_of_weights);
    } else if (!all_finite(saturated(element, r.dq)) || !all_finite(saturated(element, r.dk)) ||
               !all_finite(saturated(element, r.dv))) {
      wrong += "a gradient is not finite; ";
    }
    if (!r.guards_intact) wrong += "memory outside a buffer was written; ";
    return wrong;
  }

 private:
  KinkRows kinks_of(const Problem& p) const {
    return compare_gradients ? with_doubles(p, rows_at_kink) : KinkRows();
  }

  /// `values`, with the truth in place of these rows.
  std::vector<float> without(std::vector<float> values, const std::vector<double>& exact,
                             const std::vector<int64_t>& rows) const {
    if (values.empty()) return values;
    for (const int64_t row : rows) {
      for (int64_t i = row * head_dim; i < (row + 1) * head_dim; ++i) {
        values[static_cast<size_t>(i)] = static_cast<float>(exact[static_cast<size_t>(i)]);
      }
    }
    return values;
  }

  void add(const Results<float>& naive, const Results<double>& exact, const KinkRows& rows) {
    const auto larger = [this](ErrorSize& size, const std::vector<float>& x,
                               const std::vector<double>& y) {
      if (x.empty()) return;
      const ErrorSize other = error_size(saturated(element, x), saturated(element, y), true);
      size = {std::max(size.largest, other.largest), std::max(size.rms, other.rms)};
    };
    larger(out, naive.out, exact.out);
    larger(dq, without(naive.dq, exact.dq, rows.queries), exact.dq);
    larger(dk, without(naive.dk, exact.dk, rows.keys), exact.dk);
    larger(dv, naive.dv, exact.dv);
  }
};

}  // namespace favor::test

#endif  // FAVOR_TESTING_JUDGE_H_
