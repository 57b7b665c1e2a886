// SPDX-License-Identifier: Apache-2.0
// Internal: the caller's tensors as the kernels see them, with an element type known at run time,
// so that one kernel serves every type and converts where it loads and stores.
#ifndef FAVOR_ROWS_H_
#define FAVOR_ROWS_H_

#include <array>
#include <cstdint>
#include <type_traits>

#include "favor/half.h"
#include "favor/tensor_view.h"

namespace favor {

enum class ElementType : uint8_t { kFloat32, kBfloat16, kFloat16, kFloat64 };

template <class T>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<T, double>) return ElementType::kFloat64;
  if constexpr (std::is_same_v<T, bfloat16>) return ElementType::kBfloat16;
  if constexpr (std::is_same_v<T, float16>) return ElementType::kFloat16;
  return ElementType::kFloat32;
}

constexpr int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

/// Consecutive elements; Byte is char or const char.
template <class Byte>
struct Elements {
  Byte* data;
  ElementType type;

  Elements operator+(int64_t elements) const {
    return {data + elements * element_bytes(type), type};
  }
};
using InputElements = Elements<const char>;
using OutputElements = Elements<char>;

/// A View4 without its element type.
template <class Byte>
struct Rows {
  Elements<Byte> elements{nullptr, ElementType::kFloat32};
  std::array<int64_t, 4> sizes{};
  std::array<int64_t, 4> strides{};

  Rows() = default;
  template <class T>
  Rows(const View4<T>& view)  // NOLINT(google-explicit-constructor): a view in another guise
      : elements{reinterpret_cast<Byte*>(view.data), element_type<std::remove_const_t<T>>()},
        sizes(view.sizes),
        strides(view.strides) {}

  /// The row [b, h, l, :].
  Elements<Byte> row(int64_t b, int64_t h, int64_t l) const {
    return elements + (b * strides[0] + h * strides[1] + l * strides[2]);
  }
};
using InputRows = Rows<const char>;
using OutputRows = Rows<char>;

}  // namespace favor

#endif  // FAVOR_ROWS_H_
