// SPDX-License-Identifier: Apache-2.0
// Non-owning views of caller memory: a pointer, sizes and strides. Nothing here allocates.
#ifndef FAVOR_TENSOR_VIEW_H_
#define FAVOR_TENSOR_VIEW_H_

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "favor/check.h"

namespace favor {

/// A [B, H, L, D] view. Strides are in elements; the last dimension must be contiguous (its stride
/// is 1 or its size is at most 1). Any stride may be 0, as in an expanded tensor.
template <class T>
struct View4 {
  T* data = nullptr;
  std::array<int64_t, 4> sizes{};
  std::array<int64_t, 4> strides{};

  /// Pointer to the row [b, h, l, :].
  T* row(int64_t b, int64_t h, int64_t l) const {
    return data + b * strides[0] + h * strides[1] + l * strides[2];
  }

  /// A view of mutable memory serves wherever a read-only one is asked for.
  operator View4<const T>() const requires(!std::is_const_v<T>) { return {data, sizes, strides}; }
};

/// Row-major view of contiguous memory.
template <class T>
View4<T> contiguous_view(T* data, int64_t b, int64_t h, int64_t l, int64_t d) {
  return {data, {b, h, l, d}, {h * l * d, l * d, d, 1}};
}

/// "[2, 8, 100, 64]", for error messages.
template <class T>
std::string shape_string(const View4<T>& view) {
  return message("[", view.sizes[0], ", ", view.sizes[1], ", ", view.sizes[2], ", ", view.sizes[3],
                 "]");
}

}  // namespace favor

#endif  // FAVOR_TENSOR_VIEW_H_
