// SPDX-License-Identifier: Apache-2.0
// Products of weights with few tokens, bound by reading the weights from memory. Compiled once per
// instruction set.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "performer/nn/token_rows.cpp"
#include "hwy/foreach_target.h"
#include "favor/row_products-inl.h"
#include "favor/value_maps-inl.h"
// clang-format on

#include "performer/nn/token_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "favor/isa.h"
#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace performer {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace fn = favor::HWY_NAMESPACE;
using fn::FloatTag;

// Products of one row with one token or two, by lanes. Elements of x and y stand where
// align_to_rows puts them. Two sums each, because one would wait for the latency of its additions.
template <bool kTwo, class D, class V = hn::Vec<D>>
HWY_INLINE void multiply_row(D d, const float* HWY_RESTRICT row, int64_t cols,
                             const float* HWY_RESTRICT x, const float* HWY_RESTRICT y, V& a, V& b) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  V a1 = hn::Zero(d), b1 = a1;
  a = b = a1;
  int64_t i = 0;
  for (; i + 2 * N <= cols; i += 2 * N) {
    const V w0 = hn::LoadU(d, row + i), w1 = hn::LoadU(d, row + i + N);
    a = hn::MulAdd(w0, hn::LoadU(d, x + i), a);
    a1 = hn::MulAdd(w1, hn::LoadU(d, x + i + N), a1);
    if constexpr (kTwo) {
      b = hn::MulAdd(w0, hn::LoadU(d, y + i), b);
      b1 = hn::MulAdd(w1, hn::LoadU(d, y + i + N), b1);
    }
  }
  for (; i < cols; i += N) {
    const V w = hn::LoadU(d, row + std::min(i, cols - N));
    a = hn::MulAdd(w, hn::LoadU(d, x + i), a);
    if constexpr (kTwo) b = hn::MulAdd(w, hn::LoadU(d, y + i), b);
  }
  a = hn::Add(a, a1);
  if constexpr (kTwo) b = hn::Add(b, b1);
}

// Products of four rows with one token or two, the sums to out[0..4) and out[4..8). One row after
// the other, as they lie in memory: the hardware follows that better than four streams.
template <bool kTwo, class D>
HWY_INLINE void multiply_four(D d, const float* HWY_RESTRICT rows, int64_t cols,
                              const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                              float* HWY_RESTRICT out) {
  hn::Vec<D> a0, a1, a2, a3, b0, b1, b2, b3;
  multiply_row<kTwo>(d, rows, cols, x, y, a0, b0);
  multiply_row<kTwo>(d, rows + cols, cols, x, y, a1, b1);
  multiply_row<kTwo>(d, rows + 2 * cols, cols, x, y, a2, b2);
  multiply_row<kTwo>(d, rows + 3 * cols, cols, x, y, a3, b3);
  fn::store_sums(d, a0, a1, a2, a3, out);
  if constexpr (kTwo) fn::store_sums(d, b0, b1, b2, b3, out + 4);
}

template <class D>
float multiply_one(D d, const float* HWY_RESTRICT row, int64_t cols, const float* HWY_RESTRICT x) {
  hn::Vec<D> sum, none;
  multiply_row<false>(d, row, cols, x, nullptr, sum, none);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Rows [first, end) of the layer.
template <class D>
HWY_NOINLINE void multiply_range(D d, const LinearRows& layer, int64_t first, int64_t end,
                                 const float* x, int64_t stride, int64_t B, bool add, float* out) {
  if (!fn::fits(d, layer.cols)) {
    return multiply_range(fn::Shorter<D>(), layer, first, end, x, stride, B, add, out);
  }
  const auto write = [&](int64_t b, int64_t r, float sum) {
    float& to = out[b * layer.rows + r];
    const float value = layer.bias == nullptr ? sum : sum + layer.bias[r];
    to = add ? to + value : value;
  };
  float sums[8];
  int64_t r = first;
  for (; r + 4 <= end; r += 4) {
    const float* rows = layer.weight + r * layer.cols;
    int64_t b = 0;
    for (; b + 2 <= B; b += 2) {
      const float* tokens = x + b * stride;
      multiply_four<true>(d, rows, layer.cols, tokens, tokens + stride, sums);
      for (int64_t i = 0; i < 8; ++i) write(b + i / 4, r + i % 4, sums[i]);
    }
    if (b == B) continue;
    multiply_four<false>(d, rows, layer.cols, x + b * stride, nullptr, sums);
    for (int64_t i = 0; i < 4; ++i) write(b, r + i, sums[i]);
  }
  for (; r < end; ++r) {
    for (int64_t b = 0; b < B; ++b) {
      write(b, r, multiply_one(d, layer.weight + r * layer.cols, layer.cols, x + b * stride));
    }
  }
}

// As the rows of a layer of so many columns are walked over.
template <class D>
void align(D d, const float* x, int64_t B, int64_t cols, float* to) {
  for (int64_t b = 0; b < B; ++b) {
    fn::align_to_rows(d, x + b * cols, cols, 1.0f, to + b * fn::aligned_floats(cols));
  }
}

void run_multiply(const LinearRows& layer, const float* x, int64_t B, bool add, float* out) {
  const FloatTag d;
  std::vector<float> aligned;
  int64_t stride = layer.cols;
  if (layer.cols % static_cast<int64_t>(hn::Lanes(d)) != 0) {
    stride = fn::aligned_floats(layer.cols);
    aligned.resize(static_cast<size_t>(B * stride));
    align(d, x, B, layer.cols, aligned.data());
    x = aligned.data();
  }
  // A task is long against waking a thread; its rows are whole groups of four.
  constexpr int64_t kTaskFloats = 65536;
  const int64_t task_rows = (kTaskFloats / layer.cols + 4) / 4 * 4;
  favor::parallel_for((layer.rows + task_rows - 1) / task_rows, [&](int64_t task) {
    multiply_range(d, layer, task * task_rows, std::min((task + 1) * task_rows, layer.rows), x,
                   stride, B, add, out);
  });
}

template <class D>
void normalize(D d, const float* x, const float* weight, const float* bias, int64_t dim,
               float* out) {
  if (!fn::fits(d, dim)) return normalize(fn::Shorter<D>(), x, weight, bias, dim, out);
  const int64_t N = static_cast<int64_t>(hn::Lanes(d)), whole = dim / N * N;
  const float share = 1.0f / static_cast<float>(dim);
  auto sums = hn::Zero(d);
  for (int64_t i = 0; i < whole; i += N) sums = hn::Add(sums, hn::LoadU(d, x + i));
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int64_t i = whole; i < dim; ++i) sum += x[i];
  const float mean = sum * share;
  const auto means = hn::Set(d, mean);
  // Of differences, in a pass of its own: the mean square less the squared mean would cancel.
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < whole; i += N) {
    const auto off = hn::Sub(hn::LoadU(d, x + i), means);
    squares = hn::MulAdd(off, off, squares);
  }
  float square = hn::GetLane(hn::SumOfLanes(d, squares));
  for (int64_t i = whole; i < dim; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / std::sqrt(square * share + 1e-5f);
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < whole; i += N) {
    const auto unit = hn::Mul(hn::Sub(hn::LoadU(d, x + i), means), factors);
    hn::StoreU(hn::MulAdd(unit, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, out + i);
  }
  for (int64_t i = whole; i < dim; ++i) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

void run_normalize(const float* x, const float* weight, const float* bias, int64_t B, int64_t dim,
                   float* out) {
  for (int64_t b = 0; b < B; ++b) {
    normalize(FloatTag(), x + b * dim, weight, bias, dim, out + b * dim);
  }
}

HWY_NOINLINE void gelu(const float* gate, const float* up, float* out) {
  const FloatTag d;
  fn::Vector slope;
  const auto value = fn::GeluMap::apply(hn::LoadU(d, gate), hn::Zero(d), slope);
  hn::StoreU(up == nullptr ? value : hn::Mul(value, hn::LoadU(d, up)), d, out);
}

void run_gelu(const float* gate, const float* up, int64_t count, float* out) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(FloatTag()));
  int64_t i = 0;
  for (; i + N <= count; i += N) gelu(gate + i, up == nullptr ? nullptr : up + i, out + i);
  if (i == count) return;
  float gates[32] = {}, ups[32] = {}, outs[32];
  std::copy_n(gate + i, count - i, gates);
  if (up != nullptr) std::copy_n(up + i, count - i, ups);
  gelu(gates, up == nullptr ? nullptr : ups, outs);
  std::copy_n(outs, count - i, out + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace performer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace performer {

HWY_EXPORT(run_multiply);
HWY_EXPORT(run_normalize);
HWY_EXPORT(run_gelu);

void multiply_rows(const LinearRows& layer, const float* x, int64_t B, bool add, float* out) {
  favor::apply_isa_limit();
  HWY_DYNAMIC_DISPATCH(run_multiply)(layer, x, B, add, out);
}

void normalize_rows(const float* x, const float* weight, const float* bias, int64_t B, int64_t dim,
                    float* out) {
  favor::apply_isa_limit();
  HWY_DYNAMIC_DISPATCH(run_normalize)(x, weight, bias, B, dim, out);
}

void gelu_rows(const float* gate, const float* up, int64_t count, float* out) {
  favor::apply_isa_limit();
  HWY_DYNAMIC_DISPATCH(run_gelu)(gate, up, count, out);
}

}  // namespace performer
#endif  // HWY_ONCE
