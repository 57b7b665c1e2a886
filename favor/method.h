// SPDX-License-Identifier: Apache-2.0
// Exact attention or random features: which of the two takes less time for a shape.
#ifndef FAVOR_METHOD_H_
#define FAVOR_METHOD_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace favor {

enum class Method {
  kFavor,  ///< random features (attention.h)
  kExact,  ///< exact softmax attention (exact.h)
  kAuto,   ///< the faster of both, for inference: it changes the function with the length
};

std::string to_string(Method method);
/// Throws favor::Error, listing the known words, if `word` is none of them.
Method method_from_string(std::string_view word);

/// What the time of a forward pass depends on, per item and head.
struct MethodShape {
  int64_t L = 0, S = 0, D = 0, E = 0, M = 0;
  bool is_causal = false;
};

/// Estimated times of the forward kernels, both in multiply-adds of the exact kernel. Fitted to
/// measurements of one thread with D = E from 32 to 128, M from 64 to 512 and L = S from 64 to
/// 2048, on AVX2 and AVX-512 within 15 %; only the ratio of the two is meant to carry to other
/// machines.
double exact_cost(const MethodShape& shape);
double favor_cost(const MethodShape& shape);

/// `wanted` itself, or for kAuto the method with the smaller estimate. Throws favor::Error for
/// negative sizes.
Method resolve_method(Method wanted, const MethodShape& shape);

}  // namespace favor

#endif  // FAVOR_METHOD_H_
