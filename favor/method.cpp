// SPDX-License-Identifier: Apache-2.0
#include "favor/method.h"

#include <algorithm>

#include "favor/check.h"
#include "favor/words.h"

namespace favor {
namespace {

constexpr Word<Method> kMethods[] = {
    {Method::kFavor, "favor"}, {Method::kExact, "exact"}, {Method::kAuto, "auto"}};

/// Products of every token with a matrix, and packing. Beside them each feature and each score
/// costs an exponential and its bookkeeping, in numbers below.
double tokens_cost(const MethodShape& s, double factor) {
  return factor * static_cast<double>(s.L + s.S) * static_cast<double>(s.D + s.E);
}

}  // namespace

std::string to_string(Method method) {
  return word_of(kMethods, method);
}

Method method_from_string(std::string_view word) {
  return value_of(kMethods, word, "method");
}

double exact_cost(const MethodShape& s) {
  const auto width = static_cast<double>(s.D + s.E);
  const auto L = static_cast<double>(s.L), S = static_cast<double>(s.S);
  if (!s.is_causal) {
    return L * S * (width + 7) + tokens_cost(s, 10);
  }
  // Row i sees i + 1 keys, at most S.
  const double rows = std::min(L, S);
  const double pairs = rows * (rows + 1) / 2 + (L - rows) * S;
  return pairs * (width + 9) + tokens_cost(s, 17);
}

double favor_cost(const MethodShape& s) {
  const auto width = static_cast<double>(s.D + s.E);
  const double features = static_cast<double>(s.L + s.S) * static_cast<double>(s.M);
  // The causal form scores the tokens of each chunk through features.
  return s.is_causal ? features * (0.95 * width + 25) + tokens_cost(s, 16)
                     : features * (0.92 * width + 12) + tokens_cost(s, 12);
}

Method resolve_method(Method wanted, const MethodShape& s) {
  for (const int64_t size : {s.L, s.S, s.D, s.E, s.M}) {
    FAVOR_CHECK(size >= 0, "resolve_method: L, S, D, E, M are ", s.L, ", ", s.S, ", ", s.D, ", ",
                s.E, ", ", s.M, ", expected no negative size");
  }
  if (wanted != Method::kAuto) {
    return wanted;
  }
  return exact_cost(s) <= favor_cost(s) ? Method::kExact : Method::kFavor;
}

}  // namespace favor
