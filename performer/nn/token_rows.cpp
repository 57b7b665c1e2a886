// SPDX-License-Identifier: Apache-2.0
// Products of weights with few tokens: four rows at a time against two tokens, while the rows that
// follow come from memory. Compiled once per instruction set.

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
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace performer {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace fn = favor::HWY_NAMESPACE;
using fn::FloatTag;

HWY_INLINE void prefetch_to_second_level(const float* at) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(at, /*rw=*/0, /*locality=*/2);
#else
  hwy::Prefetch(at);
#endif
}

// Products of four rows with one token or two, the sums to out[0..4) and out[4..8). Elements of x
// and y stand where align_to_rows puts them. With kAhead the four rows that follow in memory are
// called to the second-level cache, line by line in their order: the hardware would have to find
// out four streams anew with every step down the matrix, and calls to the first level wait for its
// few line buffers, which takes a fifth longer.
template <bool kTwo, bool kAhead, class D>
HWY_INLINE void multiply_four(D d, const float* HWY_RESTRICT rows, int64_t cols,
                              const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                              float* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kLine = 16;
  const float* ahead = rows + 4 * cols;
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (int64_t i = 0; i < cols; i += N) {
    const float* HWY_RESTRICT at = rows + std::min(i, cols - N);
    const V w0 = hn::LoadU(d, at), w1 = hn::LoadU(d, at + cols);
    const V w2 = hn::LoadU(d, at + 2 * cols), w3 = hn::LoadU(d, at + 3 * cols);
    if constexpr (kAhead) {
      for (int64_t line = 0; line < 4 * N; line += kLine)
        prefetch_to_second_level(ahead + 4 * i + line);
    }
    const V xs = hn::LoadU(d, x + i);
    a0 = hn::MulAdd(w0, xs, a0);
    a1 = hn::MulAdd(w1, xs, a1);
    a2 = hn::MulAdd(w2, xs, a2);
    a3 = hn::MulAdd(w3, xs, a3);
    if constexpr (kTwo) {
      const V ys = hn::LoadU(d, y + i);
      b0 = hn::MulAdd(w0, ys, b0);
      b1 = hn::MulAdd(w1, ys, b1);
      b2 = hn::MulAdd(w2, ys, b2);
      b3 = hn::MulAdd(w3, ys, b3);
    }
  }
  fn::store_sums(d, a0, a1, a2, a3, out);
  if constexpr (kTwo) fn::store_sums(d, b0, b1, b2, b3, out + 4);
}

template <class D>
float multiply_one(D d, const float* HWY_RESTRICT row, int64_t cols, const float* HWY_RESTRICT x) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < cols; i += N) {
    sum = hn::MulAdd(hn::LoadU(d, row + std::min(i, cols - N)), hn::LoadU(d, x + i), sum);
  }
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
      if (b == 0) {
        multiply_four<true, true>(d, rows, layer.cols, tokens, tokens + stride, sums);
      } else {
        multiply_four<true, false>(d, rows, layer.cols, tokens, tokens + stride, sums);
      }
      for (int64_t i = 0; i < 8; ++i) write(b + i / 4, r + i % 4, sums[i]);
    }
    if (b == B) continue;
    if (b == 0) {
      multiply_four<false, true>(d, rows, layer.cols, x, nullptr, sums);
    } else {
      multiply_four<false, false>(d, rows, layer.cols, x + b * stride, nullptr, sums);
    }
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
