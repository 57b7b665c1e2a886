// SPDX-License-Identifier: Apache-2.0
// What tests and the benchmark share: every instruction set in turn, guarded buffers, random
// attention problems, and the rule that judges a kernel by the error of the naive float code. No
// gtest here.
#ifndef FAVOR_TESTING_H_
#define FAVOR_TESTING_H_

#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "favor/attention.h"
#include "favor/cancellation.h"
#include "favor/exact.h"
#include "favor/isa.h"
#include "favor/projection.h"
#include "favor/random.h"
#include "favor/reference.h"
#include "favor/reference_exact.h"
#include "favor/rows.h"

namespace favor::test {

/// Calls body(name) once for every instruction set that was compiled and that this CPU has, with
/// dispatch pinned to it. Afterwards dispatch is free again.
template <class Body>
void for_each_isa(const Body& body) {
  struct Release {
    ~Release() { hwy::SetSupportedTargetsForTest(0); }
  } release;
  apply_isa_limit();
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.empty()) throw std::logic_error("for_each_isa: no instruction set to test");
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
  }
}

/// How a [B, H, L, D] tensor lies in memory.
enum class Layout {
  kContiguous,
  kMisaligned,  ///< one element off any alignment, rows further apart than D
  kTransposed,  ///< [B, L, H, D] memory
  kExpanded,    ///< all heads are one (stride 0); for inputs only
};

/// Rounds values to an element type.
inline void round_to(ElementType type, std::vector<float>& values) {
  for (float& value : values) {
    if (type == ElementType::kBfloat16) value = static_cast<float>(bfloat16(value));
    if (type == ElementType::kFloat16) value = static_cast<float>(float16(value));
  }
}

/// The largest relative error of a value that is rounded to the type; 0 for float, whose own
/// rounding is part of the rule below.
inline double rounding_unit(ElementType type) {
  return type == ElementType::kBfloat16 ? 0x1p-8 : type == ElementType::kFloat16 ? 0x1p-11 : 0;
}

/// Brings what lies beyond the range of float16, infinity included, to its largest number, so that
/// an infinite result is right where the truth is too large to be stored.
template <class T>
std::vector<T> saturated(ElementType type, std::vector<T> values) {
  for (T& value : values) {
    if (type == ElementType::kFloat16) value = std::clamp(value, T{-65504}, T{65504});
  }
  return values;
}

/// Memory of a view. Elements start as NaN; around and between them lie guards, NaNs of one bit
/// pattern, which reach a result if read and are missed if overwritten.
template <class T>
class Buffer {
 public:
  Buffer(std::array<int64_t, 4> sizes, Layout layout) {
    const auto [B, H, L, D] = sizes;
    const int64_t row = layout == Layout::kMisaligned ? D + 3 : D;
    int64_t offset = kGuard;
    view_.sizes = sizes;
    view_.strides = {H * L * row, L * row, row, 1};
    if (layout == Layout::kMisaligned) offset += 1;
    if (layout == Layout::kTransposed) view_.strides = {L * H * D, D, H * D, 1};
    if (layout == Layout::kExpanded) view_.strides = {L * D, 0, D, 1};
    memory_.assign(offset + B * H * L * row + kGuard, guard());
    view_.data = memory_.data() + offset;
    is_element_.assign(memory_.size(), 0);
    for_each([&](T& element) {
      element = T(std::numeric_limits<float>::quiet_NaN());
      is_element_[&element - memory_.data()] = 1;
    });
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) = default;  // the vector's memory, and so the view, stays in place

  View4<T> view() const { return view_; }

  void set(const std::vector<float>& values) {
    size_t i = 0;
    for_each([&](T& element) { element = T(values[i++]); });
  }
  std::vector<float> get() const {
    std::vector<float> values;
    for_each([&](T& element) { values.push_back(static_cast<float>(element)); });
    return values;
  }

  bool guards_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!is_element_[i] && std::memcmp(&memory_[i], &kPattern, sizeof(T)) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;             // as long as four of the longest vectors
  static constexpr uint32_t kPattern = 0x7fc07fbe;  // NaN as a whole and in its halves

  static T guard() {
    T value;
    std::memcpy(&value, &kPattern, sizeof(T));
    return value;
  }

  template <class Body>
  void for_each(const Body& body) const {
    for (int64_t b = 0; b < view_.sizes[0]; ++b) {
      for (int64_t h = 0; h < view_.sizes[1]; ++h) {
        for (int64_t l = 0; l < view_.sizes[2]; ++l) {
          for (int64_t d = 0; d < view_.sizes[3]; ++d) body(view_.row(b, h, l)[d]);
        }
      }
    }
  }

  std::vector<T> memory_;
  std::vector<uint8_t> is_element_;
  View4<T> view_;
};

/// Largest and root mean square difference between values and the truth.
struct ErrorSize {
  double largest = 0, rms = 0;
};

/// Values that are not finite make the error of a kernel infinite; as naive results they are left
/// out, because they allow nothing.
inline ErrorSize error_size(const std::vector<float>& values, const std::vector<double>& truth,
                            bool is_naive) {
  if (values.size() != truth.size()) throw std::logic_error("error_size: the sizes differ");
  ErrorSize size;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (is_naive && !std::isfinite(values[i])) continue;
    const double error = std::isfinite(values[i]) ? std::abs(values[i] - truth[i])
                                                  : std::numeric_limits<double>::infinity();
    size.largest = std::max(size.largest, error);
    size.rms += error * error / static_cast<double>(truth.size());
  }
  size.rms = std::sqrt(size.rms);
  return size;
}

/// How far a kernel is from what it is allowed: a ratio of at most 1 is right.
struct ErrorRatio {
  double ratio = 0;
  double kernel = 0;  ///< largest error of the kernel
  double naive = 0;   ///< largest error of the naive float code
};

/// The rule: err(kernel) <= 2 err(naive) + 4 eps scale, with errors against `truth`, both for the
/// largest and for the root mean square error. scale is the size of the truth, or that of `terms`
/// if larger: results that are differences of larger terms are rounded relative to these.
inline ErrorRatio error_ratio(const std::vector<float>& kernel, const ErrorSize& naive,
                              const std::vector<double>& truth,
                              const std::vector<double>& terms = {}, double extra = 0) {
  const ErrorSize error = error_size(kernel, truth, false);
  ErrorSize scale;
  for (const std::vector<double>* x : {&truth, &terms}) {
    double square = 0;
    for (const double value : *x) {
      scale.largest = std::max(scale.largest, std::abs(value));
      square += value * value / static_cast<double>(x->size());
    }
    scale.rms = std::max(scale.rms, std::sqrt(square));
  }
  const double eps = std::numeric_limits<float>::epsilon();
  const auto ratio = [&](double actual, double budget, double size) {
    return actual == 0 ? 0 : actual / (2 * budget + (4 * eps + extra) * size);
  };
  return {std::max(ratio(error.largest, naive.largest, scale.largest),
                   ratio(error.rms, naive.rms, scale.rms)),
          error.largest, naive.largest};
}

inline ErrorRatio error_ratio(const std::vector<float>& kernel, const std::vector<float>& naive,
                              const std::vector<double>& truth,
                              const std::vector<double>& terms = {}) {
  return error_ratio(kernel, error_size(naive, truth, true), truth, terms);
}

inline std::vector<float> random_normal(uint64_t seed, uint64_t stream, int64_t size,
                                        double factor = 1) {
  RandomStream rng(seed, stream);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(factor * rng.normal());
  return values;
}

enum class ProjectionUse { kShared, kPerHead, kNone };
enum class MaskKind {
  kNone,
  kRandom,  ///< about a third of the keys
  kLeft,    ///< the first keys of each item, as in left padding
  kItem,    ///< every key of item 0
};

enum class WeightKind {
  kNone,
  kShared,   ///< of all key heads, standard deviation 1, a few of them -inf
  kPerHead,  ///< of each key head
};

/// One attention problem. Rows of q and k have entries of standard deviation `norm`.
struct Case {
  int64_t B = 1, H = 2, L = 64, S = 64, D = 8, E = 8, M = 16;
  int64_t group = 1;  ///< query heads of a key head; divides H
  bool causal = false;
  FeatureMapKind feature_map = FeatureMapKind::kPositive;
  ProjectionUse projection = ProjectionUse::kShared;
  bool structured = false;  ///< Hadamard matrices, which kernels get in compact form
  MaskKind mask = MaskKind::kNone;
  std::vector<int64_t> cu_seqlens_q, cu_seqlens_k;
  double norm = 1;
  Layout layout = Layout::kContiguous;
  std::optional<double> scale, feature_eps;
  Compatibility compatibility = Compatibility::kNone;
  bool renormalize = true;
  WeightKind weights = WeightKind::kNone;
  int64_t window = 0, sinks = 0;
  bool exact = false;                           ///< exact attention instead of features
  bool keep_state = true;                       ///< pass Saved::state
  ElementType element = ElementType::kFloat32;  ///< of q, k, v, out and gradients
  uint64_t seed = 1;

  int64_t G() const { return H / group; }
  /// Rows of a random matrix.
  int64_t R() const { return num_projection_rows(feature_map, M); }

  std::string name() const {
    return message(causal ? "causal" : "bidirectional", " ",
                   exact ? "exact" : to_string(feature_map), " window ", window, " sinks ", sinks,
                   " B", B, " H", H, " L", L, " S", S, " D", D, " E", E, " M", M, " norm ", norm,
                   " mask ", static_cast<int>(mask), " projection ", static_cast<int>(projection),
                   structured ? " structured" : "", " layout ", static_cast<int>(layout),
                   " segments ", cu_seqlens_q.size(), " group ", group, " weights ",
                   static_cast<int>(weights), " renormalize ", renormalize, " eps ",
                   feature_eps.value_or(-1), " element ", static_cast<int>(element));
  }
};

/// The tensors of a case in row-major order, values of its element type. Masked keys and values
/// hold NaN and 1e30.
struct Problem {
  Case spec;
  std::vector<float> q, k, v, dout, projection, key_log_weight;
  std::vector<float> map_parameters;             ///< given to causal calls of a fitted map
  std::vector<StructuredProjection> structured;  ///< the matrices of `projection`, or empty
  std::vector<uint8_t> mask;
};

inline Problem make_problem(const Case& spec) {
  const auto& c = spec;
  Problem p;
  p.spec = spec;
  p.q = random_normal(c.seed, 1, c.B * c.H * c.L * c.D, c.norm);
  p.k = random_normal(c.seed, 2, c.B * c.G() * c.S * c.D, c.norm);
  p.v = random_normal(c.seed, 3, c.B * c.G() * c.S * c.E);
  p.dout = random_normal(c.seed, 4, c.B * c.H * c.L * c.E);
  for (std::vector<float>* x : {&p.q, &p.k, &p.v, &p.dout}) round_to(c.element, *x);
  if (c.projection != ProjectionUse::kNone) {
    for (int64_t h = 0; h < (c.projection == ProjectionUse::kPerHead ? c.G() : 1); ++h) {
      ProjectionSpec matrix;
      matrix.num_features = c.R();
      matrix.head_dim = c.D;
      matrix.seed = c.seed;
      matrix.head = static_cast<uint32_t>(h);
      if (c.structured) {
        matrix.kind = ProjectionKind::kHadamard;
        p.structured.push_back(draw_structured_projection(matrix));
      }
      const std::vector<float> w = draw_projection(matrix);
      p.projection.insert(p.projection.end(), w.begin(), w.end());
    }
  }
  if (c.layout == Layout::kExpanded) {
    const auto repeat = [&](std::vector<float>& x, int64_t heads, int64_t head_size) {
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
        const int64_t b = i / (heads * head_size);
        x[i] = x[b * heads * head_size + i % head_size];
      }
    };
    repeat(p.q, c.H, c.L * c.D);
    repeat(p.k, c.G(), c.S * c.D);
    repeat(p.v, c.G(), c.S * c.E);
    repeat(p.dout, c.H, c.L * c.E);
  }
  if (c.causal && is_fitted(c.feature_map)) {
    AttentionParams<float> params;
    params.feature_map = c.feature_map;
    params.scale = c.scale;
    params.projection = p.projection.data();
    params.num_features = c.M;
    params.num_projections = c.projection == ProjectionUse::kPerHead ? c.G() : 1;
    params.num_map_parameter_sets = c.G();
    p.map_parameters =
        fit_feature_map<float>(params, contiguous_view<const float>(p.q.data(), c.B, c.H, c.L, c.D),
                               contiguous_view<const float>(p.k.data(), c.B, c.G(), c.S, c.D));
  }
  RandomStream weights(c.seed, 6);
  if (c.weights != WeightKind::kNone) {
    p.key_log_weight.resize(c.B * (c.weights == WeightKind::kPerHead ? c.G() : 1) * c.S);
    for (float& weight : p.key_log_weight) {
      weight = weights.uniform() < 0.2 ? -std::numeric_limits<float>::infinity()
                                       : static_cast<float>(weights.normal());
    }
  }
  if (c.mask == MaskKind::kNone) return p;
  RandomStream rng(c.seed, 5);
  p.mask.assign(c.B * c.S, 0);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t j = 0; j < c.S; ++j) {
      const bool ignored = c.mask == MaskKind::kRandom ? rng.uniform() < 0.33
                           : c.mask == MaskKind::kLeft ? j < std::min<int64_t>(c.S / 3 + b, c.S)
                                                       : b == 0;
      p.mask[b * c.S + j] = ignored ? static_cast<uint8_t>(1 + rng.below(255)) : 0;
      if (!ignored) continue;
      const float garbage = j % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
      for (int64_t g = 0; g < c.G(); ++g) {
        std::fill_n(p.k.begin() + ((b * c.G() + g) * c.S + j) * c.D, c.D, garbage);
        std::fill_n(p.v.begin() + ((b * c.G() + g) * c.S + j) * c.E, c.E, garbage);
      }
    }
  }
  return p;
}

/// Outputs and gradients in row-major order.
template <class T>
struct Results {
  std::vector<T> out, dq, dk, dv;
  std::vector<T> out_terms;  ///< with kTerms: the output for |v|
  bool guards_intact = true;
};

/// The parameters of a problem without fitted parameters and key weights.
template <class T>
AttentionParams<T> make_params(const Problem& p, const std::vector<T>& projection) {
  AttentionParams<T> params;
  params.feature_map = p.spec.feature_map;
  params.scale = p.spec.scale;
  params.feature_eps = p.spec.feature_eps;
  params.projection = projection.empty() ? nullptr : projection.data();
  params.compatibility = p.spec.compatibility;
  params.renormalize = p.spec.renormalize;
  params.num_projections = p.spec.projection == ProjectionUse::kPerHead ? p.spec.G() : 1;
  params.num_features = projection.empty() ? 0 : p.spec.M;
  params.key_padding_mask = p.mask.empty() ? nullptr : p.mask.data();
  params.window = p.spec.exact ? 0 : p.spec.window;
  params.sinks = p.spec.exact ? 0 : p.spec.sinks;
  params.cu_seqlens_q = p.spec.cu_seqlens_q;
  params.cu_seqlens_k = p.spec.cu_seqlens_k;
  return params;
}

/// The parameters of a problem in T, with the arrays they point to.
template <class T>
struct Params {
  std::vector<T> projection, map_parameters, key_log_weight;
  AttentionParams<T> value;

  explicit Params(const Problem& p)
      : projection(p.projection.begin(), p.projection.end()),
        map_parameters(p.map_parameters.begin(), p.map_parameters.end()),
        key_log_weight(p.key_log_weight.begin(), p.key_log_weight.end()),
        value(make_params(p, projection)) {
    if (!map_parameters.empty()) {
      value.map_parameters = map_parameters.data();
      value.num_map_parameter_sets = p.spec.G();
    }
    if (!key_log_weight.empty()) {
      value.key_log_weight = key_log_weight.data();
      value.num_key_log_weights = p.spec.weights == WeightKind::kPerHead ? p.spec.G() : 1;
    }
  }
  Params(const Params&) = delete;
  Params& operator=(const Params&) = delete;
};

/// The same problem without features.
template <class T>
ExactParams<T> exact_params(const Case& c, const AttentionParams<T>& params) {
  ExactParams<T> exact;
  exact.scale = c.scale;
  exact.is_causal = c.causal;
  exact.key_padding_mask = params.key_padding_mask;
  exact.key_log_weight = params.key_log_weight;
  exact.num_key_log_weights = params.num_key_log_weights;
  exact.window = c.window;
  exact.sinks = c.sinks;
  exact.cu_seqlens_q = params.cu_seqlens_q;
  exact.cu_seqlens_k = params.cu_seqlens_k;
  return exact;
}

enum class Passes {
  kForward,  ///< gradients stay empty
  kBoth,
  kTerms,  ///< as kBoth with |v|, |dout| and out = 0
};

/// Forward and backward by the reference in T. Where T is float, results are rounded to the case's
/// element type when they are stored, so that the backward pass sees the output as a kernel does.
///
/// dv is a sum of dout with positive weights, and the gradient of a feature is dout.v less
/// dout.out. With kTerms signs no longer cancel and the second term is missing, which leaves the
/// size of what rounding errors are relative to.
template <class T>
Results<T> run_reference(const Problem& p, Passes passes = Passes::kBoth) {
  const Case& c = p.spec;
  const auto convert = [](const std::vector<float>& x) {
    return std::vector<T>(x.begin(), x.end());
  };
  std::vector<T> q = convert(p.q), k = convert(p.k), v = convert(p.v), dout = convert(p.dout);
  Results<T> r;
  if (passes == Passes::kTerms) {
    for (std::vector<T>* x : {&v, &dout}) {
      for (T& value : *x) value = std::abs(value);
    }
  }
  const T nan = std::numeric_limits<T>::quiet_NaN();
  r.out.assign(dout.size(), nan);
  const auto view = [&](std::vector<T>& x, int64_t length, int64_t width) {
    const int64_t heads = &x == &k || &x == &v || &x == &r.dk || &x == &r.dv ? c.G() : c.H;
    return contiguous_view(x.data(), c.B, heads, length, width);
  };
  const auto read = [&](std::vector<T>& x, int64_t length, int64_t width) {
    return View4<const T>(view(x, length, width));
  };
  const Params<T> owned(p);
  const AttentionParams<T>& params = owned.value;
  const auto forward =
      c.causal ? reference::causal_forward<T, DecodeState>
               : +[](const AttentionParams<T>& a, View4<const T> b, View4<const T> d,
                     View4<const T> e, View4<T> f, Saved<T>* g, const DecodeState*,
                     DecodeState*) { reference::bidirectional_forward<T>(a, b, d, e, f, g); };
  const auto backward =
      c.causal ? reference::causal_backward<T> : reference::bidirectional_backward<T>;
  std::vector<T> normalizer(c.B * c.H * c.L);
  if (c.exact) {
    reference::exact_forward<T>(exact_params(c, params), read(q, c.L, c.D), read(k, c.S, c.D),
                                read(v, c.S, c.E), view(r.out, c.L, c.E), normalizer.data());
  } else {
    forward(params, read(q, c.L, c.D), read(k, c.S, c.D), read(v, c.S, c.E), view(r.out, c.L, c.E),
            nullptr, nullptr, nullptr);
  }
  const auto finish = [&](std::initializer_list<std::vector<T>*> results) {
    if constexpr (std::is_same_v<T, float>) {
      for (std::vector<T>* x : results) round_to(c.element, *x);
    }
  };
  finish({&r.out});
  if (passes == Passes::kForward) return r;
  if (passes == Passes::kTerms) {
    r.out_terms = r.out;
    std::fill(r.out.begin(), r.out.end(), T{0});
  }
  r.dq.assign(q.size(), nan);
  r.dk.assign(k.size(), nan);
  r.dv.assign(v.size(), nan);
  if (c.exact) {
    reference::exact_backward<T>(exact_params(c, params), read(q, c.L, c.D), read(k, c.S, c.D),
                                 read(v, c.S, c.E), read(r.out, c.L, c.E), read(dout, c.L, c.E),
                                 normalizer.data(), view(r.dq, c.L, c.D), view(r.dk, c.S, c.D),
                                 view(r.dv, c.S, c.E));
  } else {
    backward(params, read(q, c.L, c.D), read(k, c.S, c.D), read(v, c.S, c.E), read(r.out, c.L, c.E),
             read(dout, c.L, c.E), Saved<T>(), view(r.dq, c.L, c.D), view(r.dk, c.S, c.D),
             view(r.dv, c.S, c.E));
  }
  finish({&r.dq, &r.dk, &r.dv});
  return r;
}

/// Forward and backward through the public entry points on elements of type T.
template <class T>
Results<float> run_kernel_on(const Problem& p, Passes passes) {
  const Case& c = p.spec;
  const Layout output = c.layout == Layout::kExpanded ? Layout::kContiguous : c.layout;
  const std::array<int64_t, 4> q_size{c.B, c.H, c.L, c.D}, k_size{c.B, c.G(), c.S, c.D},
      v_size{c.B, c.G(), c.S, c.E}, out_size{c.B, c.H, c.L, c.E};
  Buffer<T> q(q_size, c.layout), k(k_size, c.layout), v(v_size, c.layout), dout(out_size, c.layout);
  Buffer<T> out(out_size, output), dq(q_size, output), dk(k_size, output), dv(v_size, output);
  q.set(p.q);
  k.set(p.k);
  v.set(p.v);
  dout.set(p.dout);
  const int64_t M = c.projection == ProjectionUse::kNone ? c.D : c.M;
  const int64_t segments =
      c.cu_seqlens_q.empty() ? 1 : static_cast<int64_t>(c.cu_seqlens_q.size()) - 1;
  Buffer<float> normalizer({c.B, c.H, c.L, 1}, Layout::kContiguous);
  Buffer<float> state({1, 1, 1, saved_state_size(c.B, c.G(), c.L, M, c.E, c.causal, segments)},
                      Layout::kContiguous);
  std::vector<uint8_t> chunk_starts(c.B * c.G() * c.L + 1, 0xee);
  Saved<float> saved;
  saved.normalizer = normalizer.view().data;
  saved.state = c.keep_state ? state.view().data : nullptr;
  saved.chunk_starts = c.causal ? chunk_starts.data() : nullptr;
  Params<float> owned(p);
  if (!p.structured.empty()) {
    owned.value.projection = nullptr;
    owned.value.structured = p.structured.data();
  }
  const AttentionParams<float>& params = owned.value;
  const bool both = passes != Passes::kForward;
  if (c.exact) {
    const ExactParams<float> exact = exact_params(c, params);
    exact_forward<T>(exact, q.view(), k.view(), v.view(), out.view(), saved.normalizer);
    if (both) {
      exact_backward<T>(exact, q.view(), k.view(), v.view(), out.view(), dout.view(),
                        saved.normalizer, dq.view(), dk.view(), dv.view());
    }
  } else if (c.causal) {
    causal_forward<T>(params, q.view(), k.view(), v.view(), out.view(), &saved);
    if (both) {
      causal_backward<T>(params, q.view(), k.view(), v.view(), out.view(), dout.view(), saved,
                         dq.view(), dk.view(), dv.view());
    }
  } else {
    bidirectional_forward<T>(params, q.view(), k.view(), v.view(), out.view(), &saved);
    if (both) {
      bidirectional_backward<T>(params, q.view(), k.view(), v.view(), out.view(), dout.view(),
                                saved, dq.view(), dk.view(), dv.view());
    }
  }
  Results<float> r;
  r.out = out.get();
  if (both) {
    r.dq = dq.get();
    r.dk = dk.get();
    r.dv = dv.get();
  }
  for (const Buffer<T>* buffer : {&q, &k, &v, &dout, &out, &dq, &dk, &dv}) {
    r.guards_intact = r.guards_intact && buffer->guards_intact();
  }
  r.guards_intact = r.guards_intact && normalizer.guards_intact() && state.guards_intact();
  r.guards_intact = r.guards_intact && chunk_starts.back() == 0xee;
  return r;
}

/// Forward and backward through the public entry points, in memory of the case's layout and type.
inline Results<float> run_kernel(const Problem& p, Passes passes = Passes::kBoth) {
  switch (p.spec.element) {
    case ElementType::kBfloat16:
      return run_kernel_on<bfloat16>(p, passes);
    case ElementType::kFloat16:
      return run_kernel_on<float16>(p, passes);
    default:
      return run_kernel_on<float>(p, passes);
  }
}

inline bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
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
  const Case& c = p.spec;
  const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
  const Params<double> params(p);
  return largest_cancellation(
      params.value, contiguous_view<const double>(q.data(), c.B, c.H, c.L, c.D),
      contiguous_view<const double>(k.data(), c.B, c.G(), c.S, c.D), c.causal);
}

/// What a kernel's results are held against; computed once per problem.
///
/// The naive errors are the largest of several problems that differ in the last digits of q and k:
/// on one small problem alone, float code can be right by luck far below its usual error.
struct Judge {
  Results<double> truth;
  Results<double> terms;  ///< see run_reference
  ErrorSize out, dq, dk, dv;
  ElementType element = ElementType::kFloat32;
  bool compare_gradients = true;
  double chunk_rounding = 0, cancelled = 0;
  // Results of 16 bits are rounded once more. The naive results are rounded too, but on a small
  // problem they may be luckier than half a spacing.
  double storage_rounding = 0;
  double transform_rounding = 0;

  explicit Judge(const Problem& p, Passes passes = Passes::kBoth)
      : truth(run_reference<double>(p, passes)),
        element(p.spec.element),
        // Beyond, attention is one-hot and float gradients are mostly cancellation. Fitted maps
        // multiply logits by sqrt(1 - 4A), which is large when the norm is.
        compare_gradients(passes == Passes::kBoth &&
                          p.spec.norm <= (is_fitted(p.spec.feature_map) ? 4 : 8)),
        storage_rounding(rounding_unit(p.spec.element)) {
    if (!compare_gradients) passes = Passes::kForward;
    // A chunk's stabilisers know its later keys, so exponents reach down to -126 in base 2, where
    // each of key and query is rounded by up to 2^-18 log(2): 5.3e-6 together at the worst, and
    // less on the average of features. The naive code has the token's own stabilisers. Only large
    // norms go that far.
    if (p.spec.causal && p.spec.norm > 8) chunk_rounding = 4e-6;
    if (p.spec.structured) transform_rounding = transform_error(p.spec);
    // Products of bfloat16 numbers round each weight, which moves the output relative to the mean
    // of |v|, however much of it cancels.
    const bool rounds_weights = element == ElementType::kBfloat16;
    if (compare_gradients || rounds_weights) terms = run_reference<double>(p, Passes::kTerms);
    if (!rounds_weights) terms.out_terms.clear();
    // Each denominator's rounding is relative to the size of its terms.
    cancelled = 4 * std::numeric_limits<float>::epsilon() * (cancellation(p) - 1);
    add(run_reference<float>(p, passes), truth);
    const Case& c = p.spec;
    if (c.B * c.H * (c.L + c.S) * c.M * (c.D + c.E) > 100'000'000) return;
    for (uint64_t i = 0; i < 2; ++i) {
      Problem other = p;
      RandomStream rng(c.seed, 100 + i);
      for (std::vector<float>* x : {&other.q, &other.k}) {
        for (float& value : *x) value *= static_cast<float>(1 + 1e-5 * rng.normal());
      }
      add(run_reference<float>(other, passes), run_reference<double>(other, passes));
    }
  }

  /// What a fast transform may add to the error of a logit, and so, relatively, to that of a
  /// weight: each of its 3 log2(n) additions rounds numbers of the size of the logits, norm sqrt(D
  /// scale) on average, by 2^-25 rms of it at most. Four standard deviations, for there are many
  /// logits. The naive products can be right by luck where there are few.
  static double transform_error(const Case& c) {
    const double D = static_cast<double>(c.D);
    const double stages = 3 * std::ceil(std::log2(D));
    const double softmax_scale = estimates_softmax(c.feature_map) ? 1 / std::sqrt(D) : 1;
    return 4 * 0x1p-25 * std::sqrt(stages) * c.norm *
           std::sqrt(D * c.scale.value_or(softmax_scale));
  }

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
    check("out", r.out, out, truth.out, terms.out_terms, chunk_rounding + rounding);
    if (compare_gradients) {
      check("dq", r.dq, dq, truth.dq, terms.dq, rounding);
      check("dk", r.dk, dk, truth.dk, terms.dk, rounding);
      check("dv", r.dv, dv, truth.dv, terms.dv, rounding);
    } else if (!all_finite(saturated(element, r.dq)) || !all_finite(saturated(element, r.dk)) ||
               !all_finite(saturated(element, r.dv))) {
      wrong += "a gradient is not finite; ";
    }
    if (!r.guards_intact) wrong += "memory outside a buffer was written; ";
    return wrong;
  }

 private:
  void add(const Results<float>& naive, const Results<double>& exact) {
    const auto widen = [this](ErrorSize& size, const std::vector<float>& x,
                              const std::vector<double>& y) {
      if (x.empty()) return;
      const ErrorSize other = error_size(saturated(element, x), saturated(element, y), true);
      size = {std::max(size.largest, other.largest), std::max(size.rms, other.rms)};
    };
    widen(out, naive.out, exact.out);
    widen(dq, naive.dq, exact.dq);
    widen(dk, naive.dk, exact.dk);
    widen(dv, naive.dv, exact.dv);
  }
};

}  // namespace favor::test

#endif  // FAVOR_TESTING_H_
