// SPDX-License-Identifier: Apache-2.0
// Memory for tests: guarded and laid out in unusual ways, and values rounded to 16 bits.
#ifndef FAVOR_TESTING_BUFFER_H_
#define FAVOR_TESTING_BUFFER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "favor/half.h"
#include "favor/rows.h"
#include "favor/tensor_view.h"

namespace favor::test {

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

}  // namespace favor::test

#endif  // FAVOR_TESTING_BUFFER_H_
