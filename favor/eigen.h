// SPDX-License-Identifier: Apache-2.0
// Internal: the linear algebra in double behind fitted maps.
#ifndef FAVOR_EIGEN_H_
#define FAVOR_EIGEN_H_

#include <cstdint>
#include <vector>

namespace favor {

/// Eigenvalues in ascending order, and their unit eigenvectors in the rows of `vectors`. The sign
/// of an eigenvector is such that its product with (1 / (l + 1.6))_l is not negative, so that a
/// small change of the matrix changes no sign.
struct Eigen {
  std::vector<double> values, vectors;
};

/// Of a symmetric matrix [n, n]. Of one that holds a number which is not finite: its diagonal, and
/// the identity.
Eigen eigen_symmetric(std::vector<double> matrix, int64_t n);

/// left right of row-major matrices [rows, n] and [n, n].
std::vector<double> multiply_square(const std::vector<double>& left,
                                    const std::vector<double>& right, int64_t rows, int64_t n);

}  // namespace favor

#endif  // FAVOR_EIGEN_H_
