// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

namespace favor::bench {

Tensor::Tensor(int64_t b, int64_t h, int64_t l, int64_t d)
    : data(hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(b * h * l * d, 1)))),
      B(b),
      H(h),
      L(l),
      D(d) {
  fill(std::numeric_limits<float>::quiet_NaN());
}

void Tensor::fill(float value) const {
  std::fill_n(data.get(), size(), value);
}

std::vector<float> Tensor::last_head(int64_t first) const {
  return std::vector<float>(data.get() + size() - (L - first) * D, data.get() + size());
}

bool Tensor::is_finite() const {
  return std::all_of(data.get(), data.get() + size(), [](float x) { return std::isfinite(x); });
}

uint64_t Tensor::hash() const {
  const char* bytes = reinterpret_cast<const char*>(data.get());
  return std::hash<std::string_view>()({bytes, static_cast<size_t>(size()) * sizeof(float)});
}

namespace {

Tensor random_tensor(uint64_t stream, const Shape& s, int64_t L, int64_t D, double norm) {
  Tensor tensor(s.B, s.H, L, D);
  std::vector<float> values = test::random_normal(1, stream, tensor.size(), norm);
  test::round_to(s.dtype, values);
  std::copy(values.begin(), values.end(), tensor.data.get());
  for (int64_t head = 0; head < s.B * s.H && s.period > 0; ++head) {
    float* rows = tensor.data.get() + head * L * D;
    for (int64_t t = s.period; t < L; t += s.period) std::copy_n(rows, s.period * D, rows + t * D);
  }
  return tensor;
}

// Row t of every head as a [B, H, 1, D] view.
View4<float> token(View4<float> view, int64_t t) {
  view.data += t * view.strides[2];
  view.sizes[2] = 1;
  return view;
}

// A copy with the heads of a token side by side in memory, as a model hands them to a step.
Tensor by_tokens(const Tensor& tensor) {
  Tensor copy(tensor.B, tensor.L, tensor.H, tensor.D);
  const View4<float> from = tensor.view(), to = copy.view();
  for (int64_t b = 0; b < tensor.B; ++b) {
    for (int64_t h = 0; h < tensor.H; ++h) {
      for (int64_t t = 0; t < tensor.L; ++t) {
        std::copy_n(from.row(b, h, t), tensor.D, to.row(b, t, h));
      }
    }
  }
  return copy;
}

// What by_tokens has copied, as [B, H, L, D].
View4<float> by_heads(const Tensor& tensor) {
  View4<float> view = tensor.view();
  std::swap(view.sizes[1], view.sizes[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

template <class T>
std::vector<uint16_t> halves_of(const Tensor& tensor) {
  std::vector<uint16_t> bits(static_cast<size_t>(tensor.size()));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = T(tensor.data[i]).bits;
  return bits;
}

template <class T>
void widen(const std::vector<uint16_t>& bits, const Tensor& to) {
  for (size_t i = 0; i < bits.size(); ++i)
    to.data[i] = static_cast<float>(std::bit_cast<T>(bits[i]));
}

template <class T>
View4<T> half_view(std::vector<uint16_t>& bits, const Tensor& like) {
  return contiguous_view(reinterpret_cast<T*>(bits.data()), like.B, like.H, like.L, like.D);
}

// The logarithms of weights of S keys, of which the first n stand for `copies` of themselves.
std::vector<float> key_log_weights(int64_t S, int64_t n, int64_t copies) {
  std::vector<float> weights(static_cast<size_t>(S), 0.0f);
  std::fill_n(weights.begin(), n, static_cast<float>(std::log(static_cast<double>(copies))));
  return weights;
}

void prepend(const std::vector<float>& rows, std::vector<float>& to) {
  to.insert(to.begin(), rows.begin(), rows.end());
}

}  // namespace

Inputs::Inputs(const Shape& s)
    : shape(s),
      q(random_tensor(1, s, s.L, s.D, s.norm)),
      k(random_tensor(2, s, s.S, s.D, s.norm)),
      v(random_tensor(3, s, s.S, s.E, 1)),
      dout(random_tensor(4, s, s.L, s.E, 1)),
      prefix_k(random_tensor(5, s, s.prefix(), s.D, s.norm)),
      prefix_v(random_tensor(6, s, s.prefix(), s.E, 1)) {
  ProjectionSpec matrix;
  matrix.num_features = s.M;
  matrix.head_dim = s.D;
  projection = draw_projection(matrix);
  matrix.kind = ProjectionKind::kHadamard;
  structured = draw_structured_projection(matrix);
}

test::Problem Inputs::last_head(Op op, Map map) const {
  test::Problem problem;
  test::Case& c = problem.spec;
  c.B = c.H = 1;
  const bool decodes = op == Op::kDecodeStep;
  const int64_t copies = decodes             ? shape.position / kPrefixTokens
                         : shape.period == 0 ? 0
                                             : shape.L / shape.period - 1;
  const bool weighted = copies > 0 && op == Op::kCausal;
  c.L = shape.period == 0 ? shape.L : (weighted ? 2 : 1) * shape.period;
  c.S = shape.period == 0 ? shape.S : c.L;
  c.D = shape.D;
  c.E = shape.E;
  c.M = shape.features(map);
  c.causal = op != Op::kBidirectional;
  c.feature_map = map.kind;
  c.exact = map.exact;
  c.window = shape.window;
  c.sinks = shape.sinks;
  c.projection = map.projected ? test::ProjectionUse::kShared : test::ProjectionUse::kNone;
  c.norm = shape.norm;
  c.element = shape.dtype;
  problem.q = q.last_head(shape.L - c.L);
  problem.k = k.last_head(shape.S - c.S);
  problem.v = v.last_head(shape.S - c.S);
  problem.dout = dout.last_head(shape.L - c.L);
  if (decodes && copies > 0) {
    prepend(prefix_k.last_head(), problem.q);
    prepend(prefix_k.last_head(), problem.k);
    prepend(prefix_v.last_head(), problem.v);
    prepend(prefix_v.last_head(), problem.dout);
    c.L = c.S = kPrefixTokens + shape.L;
    c.weights = test::WeightKind::kShared;
    problem.key_log_weight = key_log_weights(c.S, kPrefixTokens, copies);
  }
  if (weighted) {
    c.weights = test::WeightKind::kShared;
    problem.key_log_weight = key_log_weights(c.S, shape.period, copies);
    std::fill_n(problem.dout.begin(), shape.period * shape.E, 0.0f);
  }
  c.structured = map.structured;
  if (map.projected) problem.projection = map.structured ? structured.to_dense() : projection;
  return problem;
}

namespace {

/// Pairs of a query and a key that are scored exactly.
double num_exact_pairs(const Shape& s, bool causal, bool all) {
  double pairs = 0;
  for (int64_t i = 0; i < s.L; ++i) {
    for (int64_t j = 0; j < (causal ? std::min(i + 1, s.S) : s.S); ++j) {
      pairs += all || reference::is_near(i, j, s.S, s.window, s.sinks, causal);
    }
  }
  return pairs;
}

}  // namespace

double num_flops(const Shape& s, Op op, Pass pass, Map map) {
  const bool decodes = op == Op::kDecodeStep;
  double exact = 0;
  if (map.exact || s.window > 0) {
    const double pairs = num_exact_pairs(s, op == Op::kCausal, s.window == 0);
    // Scores and weighted values; backward both again, their gradients and those of values.
    const auto heads = static_cast<double>(s.B * s.H);
    const auto D = static_cast<double>(s.D), E = static_cast<double>(s.E);
    exact = 2 * heads * pairs * (pass == Pass::kForward ? D + E : 3 * D + 2 * E);
  }
  if (map.exact) return exact;
  const auto rows = static_cast<double>(s.B * s.H * (decodes ? 2 : s.L + s.S));
  const auto width = static_cast<double>((map.projected ? s.D : 0) + s.E);
  const double forward = 2 * rows * static_cast<double>(s.features(map)) * width;
  return exact + (pass == Pass::kForward ? forward : 2 * forward);
}

Workload::Workload(const Inputs& inputs, Op op, Map map)
    : inputs_(inputs),
      op_(op),
      out_(inputs.shape.B, inputs.shape.H, inputs.shape.L, inputs.shape.E) {
  const Shape& s = inputs.shape;
  params_.feature_map = map.kind;
  params_.structured = map.structured ? &inputs.structured : nullptr;
  params_.projection = map.projected && !map.structured ? inputs.projection.data() : nullptr;
  params_.num_features = s.features(map);
  params_.window = map.exact ? 0 : s.window;
  params_.sinks = map.exact ? 0 : s.sinks;
  exact_ = map.exact;
  exact_params_.is_causal = op == Op::kCausal;
  exact_params_.window = s.window;
  exact_params_.sinks = s.sinks;
  if (op == Op::kDecodeStep) {
    steps_ = {by_tokens(inputs.q), by_tokens(inputs.k), by_tokens(inputs.v)};
    first_state_ = first_state();
    return;
  }
  dq_ = Tensor(s.B, s.H, s.L, s.D);
  dk_ = Tensor(s.B, s.H, s.S, s.D);
  dv_ = Tensor(s.B, s.H, s.S, s.E);
  const bool causal = op == Op::kCausal;
  normalizer_ = Tensor(s.B, s.H, s.L, 1);
  if (exact_ || s.window > 0) {
    saved_.normalizer = normalizer_.data.get();
    return;
  }
  state_ = Tensor(1, 1, 1, saved_state_size(s.B, s.H, s.L, s.features(map), s.E, causal, 1));
  chunk_starts_.resize(static_cast<size_t>(causal ? s.B * s.H * s.L : 0));
  saved_ = {normalizer_.data.get(), state_.data.get(), causal ? chunk_starts_.data() : nullptr};
  if (s.dtype == ElementType::kFloat32) return;
  const auto halve = [&](const Tensor& tensor) {
    return s.dtype == ElementType::kBfloat16 ? halves_of<bfloat16>(tensor)
                                             : halves_of<float16>(tensor);
  };
  halves_ = {halve(inputs.q), halve(inputs.k), halve(inputs.v), halve(inputs.dout),
             halve(out_),     halve(dq_),      halve(dk_),      halve(dv_)};
}

void Workload::prepare(Pass pass) {
  constexpr uint16_t kHalfNaN = 0x7fff;  // in either type
  for (auto* bits : pass == Pass::kForward ? std::vector{&halves_.out}
                                           : std::vector{&halves_.dq, &halves_.dk, &halves_.dv}) {
    std::fill(bits->begin(), bits->end(), kHalfNaN);
  }
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (pass == Pass::kForward) {
    out_.fill(kNaN);
  } else {
    for (const Tensor* gradient : {&dq_, &dk_, &dv_}) gradient->fill(kNaN);
  }
  if (op_ == Op::kDecodeStep) decode_state_ = first_state_;
}

DecodeState Workload::first_state() const {
  const Shape& s = inputs_.shape;
  DecodeState state(s.B, s.H, params_.num_features, s.E);
  if (s.position == 0) return state;
  DecodeState copies = state;
  const Tensor out(s.B, s.H, kPrefixTokens, s.E);
  const View4<float> k = inputs_.prefix_k.view();
  causal_forward<float>(params_, k, k, inputs_.prefix_v.view(), out.view(), nullptr, nullptr,
                        &copies);
  for (int64_t left = s.position / kPrefixTokens; left > 0; left /= 2) {
    if (left % 2 == 1) merge(state, copies);
    merge(copies, copies);
  }
  return state;
}

template <class T>
void Workload::run_halves(Pass pass) {
  Halves& x = halves_;
  const auto q = half_view<T>(x.q, inputs_.q), k = half_view<T>(x.k, inputs_.k),
             v = half_view<T>(x.v, inputs_.v), dout = half_view<T>(x.dout, inputs_.dout),
             out = half_view<T>(x.out, out_), dq = half_view<T>(x.dq, dq_),
             dk = half_view<T>(x.dk, dk_), dv = half_view<T>(x.dv, dv_);
  const bool causal = op_ == Op::kCausal;
  if (pass == Pass::kForward) {
    causal ? causal_forward<T>(params_, q, k, v, out, &saved_)
           : bidirectional_forward<T>(params_, q, k, v, out, &saved_);
  } else {
    causal ? causal_backward<T>(params_, q, k, v, out, dout, saved_, dq, dk, dv)
           : bidirectional_backward<T>(params_, q, k, v, out, dout, saved_, dq, dk, dv);
  }
}

void Workload::collect() {
  const auto widen_all = [&]<class T>(T) {
    widen<T>(halves_.out, out_);
    widen<T>(halves_.dq, dq_);
    widen<T>(halves_.dk, dk_);
    widen<T>(halves_.dv, dv_);
  };
  if (inputs_.shape.dtype == ElementType::kBfloat16) widen_all(bfloat16());
  if (inputs_.shape.dtype == ElementType::kFloat16) widen_all(float16());
}

void Workload::run(Pass pass) {
  if (inputs_.shape.dtype == ElementType::kBfloat16) return run_halves<bfloat16>(pass);
  if (inputs_.shape.dtype == ElementType::kFloat16) return run_halves<float16>(pass);
  const View4<float> q = inputs_.q.view(), k = inputs_.k.view(), v = inputs_.v.view();
  const View4<float> dout = inputs_.dout.view(), out = out_.view();
  const bool causal = op_ == Op::kCausal;
  if (op_ == Op::kDecodeStep) {
    for (int64_t t = 0; t < inputs_.shape.L; ++t) {
      decode_step(params_, token(by_heads(steps_.q), t), token(by_heads(steps_.k), t),
                  token(by_heads(steps_.v), t), decode_state_, token(out, t));
    }
  } else if (exact_ && pass == Pass::kForward) {
    exact_forward<float>(exact_params_, q, k, v, out, normalizer_.data.get());
  } else if (exact_) {
    exact_backward<float>(exact_params_, q, k, v, out, dout, normalizer_.data.get(), dq_.view(),
                          dk_.view(), dv_.view());
  } else if (pass == Pass::kForward) {
    if (causal) {
      causal_forward<float>(params_, q, k, v, out, &saved_);
    } else {
      bidirectional_forward<float>(params_, q, k, v, out, &saved_);
    }
  } else if (causal) {
    causal_backward<float>(params_, q, k, v, out, dout, saved_, dq_.view(), dk_.view(), dv_.view());
  } else {
    bidirectional_backward<float>(params_, q, k, v, out, dout, saved_, dq_.view(), dk_.view(),
                                  dv_.view());
  }
}

double Workload::error_ratio(Pass pass, const test::Judge& judge, float perturbation) {
  collect();
  double largest = 0;
  const auto check = [&](const Tensor& result, const test::ErrorSize& naive,
                         const std::vector<double>& truth, const std::vector<double>& terms,
                         double extra) {
    const int64_t period = inputs_.shape.period;
    std::vector<float> head = result.last_head(period == 0 ? 0 : result.L - period);
    head[head.size() / 2] += perturbation;
    const auto same_rows = [&](const std::vector<double>& x) {
      return x.empty()
                 ? x
                 : std::vector<double>(x.end() - static_cast<ptrdiff_t>(head.size()), x.end());
    };
    const double ratio =
        result.is_finite()
            ? test::error_ratio(head, naive, same_rows(truth), same_rows(terms), extra).ratio
            : std::numeric_limits<double>::infinity();
    // Written so that a ratio which is no number stays, and fails.
    if (!(ratio <= largest)) largest = ratio;
  };
  if (pass == Pass::kForward) {
    check(out_, judge.out, judge.truth.out, judge.terms.out_terms,
          judge.chunk_rounding + judge.storage_rounding + judge.transform_rounding);
    return largest;
  }
  // Beyond these norms Judge has no truth for gradients.
  if (!judge.compare_gradients) return std::numeric_limits<double>::infinity();
  check(dq_, judge.dq, judge.truth.dq, judge.terms.dq,
        judge.storage_rounding + judge.transform_rounding);
  check(dk_, judge.dk, judge.truth.dk, judge.terms.dk,
        judge.storage_rounding + judge.transform_rounding);
  check(dv_, judge.dv, judge.truth.dv, judge.terms.dv,
        judge.storage_rounding + judge.transform_rounding);
  return largest;
}

uint64_t Workload::hash(Pass pass) {
  collect();
  if (pass == Pass::kForward) return out_.hash();
  // Multiplied by different odd numbers, so that gradients which changed places are noticed.
  return dq_.hash() + 3 * dk_.hash() + 5 * dv_.hash();
}

}  // namespace favor::bench
