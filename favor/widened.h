// SPDX-License-Identifier: Apache-2.0
// Internal: float copies of 16-bit tensors, for plain code that computes in the type it is given.
#ifndef FAVOR_WIDENED_H_
#define FAVOR_WIDENED_H_

#include <type_traits>
#include <vector>

#include "favor/attention.h"

namespace favor {

/// A tensor as the plain code takes it. One of 16 bits is copied to floats; an output is copied
/// back when the object goes. Others are used where they lie.
template <class T>
class Widened {
 public:
  using Wide =
      std::conditional_t<std::is_const_v<T>, const Compute<std::remove_const_t<T>>, Compute<T>>;

  explicit Widened(const View4<T>& original) : original_(original) {
    if constexpr (sizeof(T) == sizeof(Wide)) {
      view_ = original;
    } else {
      const auto [B, H, L, D] = original.sizes;
      memory_.resize(static_cast<size_t>(B * H * L * D));
      view_ = contiguous_view<Wide>(memory_.data(), B, H, L, D);
      if constexpr (std::is_const_v<T>) {
        for_each([](const T& narrow, float& wide) { wide = static_cast<float>(narrow); });
      }
    }
  }
  Widened(const Widened&) = delete;
  ~Widened() {
    if constexpr (sizeof(T) != sizeof(Wide) && !std::is_const_v<T>) {
      for_each([](T& narrow, float wide) { narrow = T(wide); });
    }
  }

  View4<Wide> view() const { return view_; }

 private:
  template <class Body>
  void for_each(const Body& body) {
    size_t i = 0;
    const auto [B, H, L, D] = original_.sizes;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t l = 0; l < L; ++l) {
          T* row = original_.row(b, h, l);
          for (int64_t d = 0; d < D; ++d) body(row[d], memory_[i++]);
        }
      }
    }
  }

  View4<T> original_;
  std::vector<float> memory_;
  View4<Wide> view_;
};

}  // namespace favor

#endif  // FAVOR_WIDENED_H_
