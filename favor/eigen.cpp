// SPDX-License-Identifier: Apache-2.0
// Eigenvectors by reflections to tridiagonal form and rotations by implicit shifts (Golub and Van
// Loan, Matrix Computations, sections 8.3.1 and 8.3.3). Every inner loop runs along rows, of the
// matrix or of eigenvectors, without sums across lanes.
#include "favor/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/eigen.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DoubleTag = hn::ScalableTag<double>;

/// y += a x
HWY_INLINE void add_multiple(int64_t n, double a, const double* HWY_RESTRICT x,
                             double* HWY_RESTRICT y) {
  const DoubleTag d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, a);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
  for (; i < n; ++i) {
    y[i] += a * x[i];
  }
}

/// (x, y) = (c x + s y, c y - s x)
HWY_INLINE void rotate(int64_t n, double c, double s, double* HWY_RESTRICT x,
                       double* HWY_RESTRICT y) {
  const DoubleTag d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  const auto cosine = hn::Set(d, c), sine = hn::Set(d, s);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    const auto first = hn::LoadU(d, x + i), second = hn::LoadU(d, y + i);
    hn::StoreU(hn::MulAdd(cosine, first, hn::Mul(sine, second)), d, x + i);
    hn::StoreU(hn::NegMulAdd(sine, first, hn::Mul(cosine, second)), d, y + i);
  }
  for (; i < n; ++i) {
    const double first = x[i];
    x[i] = c * first + s * y[i];
    y[i] = c * y[i] - s * first;
  }
}

double dot(int64_t n, const double* x, const double* y) {
  return std::inner_product(x, x + n, y, 0.0);
}

/// Makes `m` [n, n] tridiagonal by reflections: diagonal and off-diagonal (element i beside i + 1)
/// are written, and row k keeps the vector of reflection k from column k + 1 on, its square being
/// 2 (or 0 where there is nothing to reflect).
void make_tridiagonal(int64_t n, double* m, double* diagonal, double* off, double* buffer) {
  for (int64_t k = 0; k + 1 < n; ++k) {
    const int64_t rest = n - k - 1;
    double* v = m + k * n + k + 1;
    double* block = m + (k + 1) * n + k + 1;  // [rest, rest] with rows n apart
    diagonal[k] = v[-1];
    const double tail = dot(rest - 1, v + 1, v + 1);
    if (tail == 0) {
      off[k] = v[0];
      std::fill_n(v, rest, 0.0);
      continue;
    }
    const double norm = std::sqrt(v[0] * v[0] + tail);
    off[k] = v[0] > 0 ? -norm : norm;
    v[0] -= off[k];
    const double factor = std::sqrt(2 / (v[0] * v[0] + tail));
    std::transform(v, v + rest, v, [factor](double x) { return factor * x; });
    // (1 - v v^T) block (1 - v v^T) = block - v w^T - w v^T
    double* w = buffer;
    std::fill_n(w, rest, 0.0);
    for (int64_t r = 0; r < rest; ++r) {
      add_multiple(rest, v[r], block + r * n, w);
    }
    add_multiple(rest, -0.5 * dot(rest, v, w), v, w);
    for (int64_t r = 0; r < rest; ++r) {
      add_multiple(rest, -v[r], w, block + r * n);
      add_multiple(rest, -w[r], v, block + r * n);
    }
  }
  diagonal[n - 1] = m[n * n - 1];
}

/// The product of the reflections that make_tridiagonal has kept, transposed.
void multiply_reflections(int64_t n, const double* m, double* product, double* buffer) {
  std::vector<double> q(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    q[static_cast<size_t>(i * n + i)] = 1;
  }
  for (int64_t k = n - 2; k >= 0; --k) {
    const int64_t rest = n - k - 1;
    const double* v = m + k * n + k + 1;
    double* block = q.data() + (k + 1) * n + k + 1;
    std::fill_n(buffer, rest, 0.0);
    for (int64_t r = 0; r < rest; ++r) {
      add_multiple(rest, v[r], block + r * n, buffer);
    }
    for (int64_t r = 0; r < rest; ++r) {
      add_multiple(rest, -v[r], buffer, block + r * n);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      product[j * n + i] = q[static_cast<size_t>(i * n + j)];
    }
  }
}

/// Rotates a tridiagonal matrix, whose entries are at most about 1, until it is diagonal, and the
/// rows of `vectors` with it.
void make_diagonal(int64_t n, double* diagonal, double* off, double* vectors) {
  constexpr double kNothing = std::numeric_limits<double>::epsilon() / 4;
  constexpr int kMostSteps = 60;  // per eigenvalue; three are usual
  for (int64_t begin = 0; begin + 1 < n; ++begin) {
    for (int step = 0; step < kMostSteps; ++step) {
      int64_t end = begin;
      while (end + 1 < n && std::abs(off[end]) > kNothing) {
        ++end;
      }
      if (end == begin) {
        break;
      }
      // From the end of the unreduced block up, with the shift that the 2 x 2 block at its
      // beginning suggests.
      const double half = (diagonal[begin + 1] - diagonal[begin]) / (2 * off[begin]);
      const double root = std::copysign(std::sqrt(half * half + 1), half);
      double bulge = diagonal[end] - diagonal[begin] + off[begin] / (half + root);
      double sine = 1, cosine = 1, moved = 0;
      int64_t i = end - 1;
      for (; i >= begin; --i) {
        const double f = sine * off[i], b = cosine * off[i];
        const double radius = std::sqrt(f * f + bulge * bulge);
        off[i + 1] = radius;
        if (radius == 0) {
          break;
        }
        sine = f / radius;
        cosine = bulge / radius;
        const double shifted = diagonal[i + 1] - moved;
        const double t = (diagonal[i] - shifted) * sine + 2 * cosine * b;
        moved = sine * t;
        diagonal[i + 1] = shifted + moved;
        bulge = cosine * t - b;
        rotate(n, cosine, sine, vectors + (i + 1) * n, vectors + i * n);
      }
      if (i >= begin) {
        diagonal[i + 1] -= moved;  // the block has come apart
      } else {
        diagonal[begin] -= moved;
        off[begin] = bulge;
      }
      off[end] = 0;
    }
  }
}

void run_eigen(int64_t n, double* matrix, double* values, double* vectors) {
  std::vector<double> off(static_cast<size_t>(n), 0.0), buffer(static_cast<size_t>(n));
  make_tridiagonal(n, matrix, values, off.data(), buffer.data());
  multiply_reflections(n, matrix, vectors, buffer.data());
  make_diagonal(n, values, off.data(), vectors);
}

/// A block of kRows rows of the product, kVectors vectors wide.
template <int kVectors>
HWY_INLINE void multiply_columns(const double* HWY_RESTRICT left, const double* HWY_RESTRICT right,
                                 int64_t rows, int64_t n, double* HWY_RESTRICT out) {
  const DoubleTag d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (int64_t l = 0; l < n; ++l) {
      const auto x = hn::Set(d, left[r * n + l]);
      const double* row = right + l * n;
      a = hn::MulAdd(x, hn::LoadU(d, row), a);
      if constexpr (kVectors > 1) {
        b = hn::MulAdd(x, hn::LoadU(d, row + N), b);
        c = hn::MulAdd(x, hn::LoadU(d, row + 2 * N), c);
        e = hn::MulAdd(x, hn::LoadU(d, row + 3 * N), e);
      }
    }
    hn::StoreU(a, d, out + r * n);
    if constexpr (kVectors > 1) {
      hn::StoreU(b, d, out + r * n + N);
      hn::StoreU(c, d, out + r * n + 2 * N);
      hn::StoreU(e, d, out + r * n + 3 * N);
    }
  }
}

void run_multiply_square(const double* left, const double* right, int64_t rows, int64_t n,
                         double* out) {
  const auto N = static_cast<int64_t>(hn::Lanes(DoubleTag()));
  int64_t column = 0;
  for (; column + 4 * N <= n; column += 4 * N) {
    multiply_columns<4>(left, right + column, rows, n, out + column);
  }
  for (; column + N <= n; column += N) {
    multiply_columns<1>(left, right + column, rows, n, out + column);
  }
  for (; column < n; ++column) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t l = 0; l < n; ++l) {
        sum += left[r * n + l] * right[l * n + column];
      }
      out[r * n + column] = sum;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_eigen);
HWY_EXPORT(run_multiply_square);

Eigen eigen_symmetric(std::vector<double> matrix, int64_t n) {
  Eigen result;
  const auto size = static_cast<size_t>(n);
  double largest = 0;
  bool finite = true;
  for (const double x : matrix) {
    largest = std::max(largest, std::abs(x));
    finite = finite && std::isfinite(x);
  }
  if (!finite || largest == 0) {
    result.vectors.assign(size * size, 0.0);
    for (size_t i = 0; i < size; ++i) {
      result.values.push_back(matrix[i * size + i]);
      result.vectors[i * size + i] = 1;
    }
    return result;
  }
  // Entries near 1, so that no square leaves the range.
  for (double& x : matrix) x /= largest;
  std::vector<double> values(size), vectors(size * size);
  HWY_DYNAMIC_DISPATCH(run_eigen)(n, matrix.data(), values.data(), vectors.data());

  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t i, size_t j) { return values[i] < values[j]; });
  for (const size_t i : order) {
    result.values.push_back(largest * values[i]);
    const double* row = vectors.data() + i * size;
    double side = 0;
    for (size_t l = 0; l < size; ++l) side += row[l] / (static_cast<double>(l) + 1.6);
    const double sign = side < 0 ? -1 : 1;
    for (size_t l = 0; l < size; ++l) result.vectors.push_back(sign * row[l]);
  }
  return result;
}

std::vector<double> multiply_square(const std::vector<double>& left,
                                    const std::vector<double>& right, int64_t rows, int64_t n) {
  std::vector<double> product(static_cast<size_t>(rows * n));
  HWY_DYNAMIC_DISPATCH(run_multiply_square)(left.data(), right.data(), rows, n, product.data());
  return product;
}

}  // namespace favor
#endif  // HWY_ONCE
