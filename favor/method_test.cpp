// SPDX-License-Identifier: Apache-2.0
#include "favor/method.h"

#include <gtest/gtest.h>

#include <string>

#include "favor/check.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

MethodShape shape(int64_t L, int64_t M, bool causal, int64_t D = 64) {
  return {L, L, D, D, M, causal};
}

Method chosen(const MethodShape& s) {
  return resolve_method(Method::kAuto, s);
}

TEST(Method, IsExactWhenShortAndFavorWhenLong) {
  for (const int64_t D : {32, 64, 128}) {
    for (const int64_t M : {64, 256, 1024}) {
      for (const bool causal : {false, true}) {
        EXPECT_EQ(chosen(shape(M / 2, M, causal, D)), Method::kExact);
        EXPECT_EQ(chosen(shape(10 * M, M, causal, D)), Method::kFavor);
      }
    }
  }
}

// Measured at D = 64, M = 256: the kernels take the same time near 500 tokens, causal near 1100.
TEST(Method, ChangesWhereTheKernelsWereMeasuredToMeet) {
  EXPECT_EQ(chosen(shape(400, 256, false)), Method::kExact);
  EXPECT_EQ(chosen(shape(650, 256, false)), Method::kFavor);
  EXPECT_EQ(chosen(shape(900, 256, true)), Method::kExact);
  EXPECT_EQ(chosen(shape(1500, 256, true)), Method::kFavor);
}

TEST(Method, NeverTurnsBackAsTheSequenceGrows) {
  for (const bool causal : {false, true}) {
    bool favor = false;
    for (int64_t L = 0; L <= 3000; ++L) {
      const bool now = chosen(shape(L, 256, causal)) == Method::kFavor;
      EXPECT_TRUE(now || !favor) << L;
      favor = now;
    }
    EXPECT_TRUE(favor);
  }
}

// Queries that see few keys, and a causal call whose keys end early.
TEST(Method, CountsThePairsThatAreScored) {
  EXPECT_EQ(chosen({100000, 50, 64, 64, 256, false}), Method::kExact);
  EXPECT_EQ(chosen({50, 100000, 64, 64, 256, true}), Method::kExact);
  EXPECT_LT(exact_cost(shape(1000, 256, true)), 0.65 * exact_cost(shape(1000, 256, false)));
  // All but the first 50 of 1000 rows see all keys: causal or not is nearly the same.
  const double all = exact_cost({1000, 50, 64, 64, 256, false});
  EXPECT_NEAR(exact_cost({1000, 50, 64, 64, 256, true}), all, 0.15 * all);
}

TEST(Method, StaysWhatWasAskedFor) {
  EXPECT_EQ(resolve_method(Method::kFavor, shape(1, 256, false)), Method::kFavor);
  EXPECT_EQ(resolve_method(Method::kExact, shape(100000, 256, false)), Method::kExact);
}

TEST(Method, HasWordsAndErrors) {
  for (const Method method : {Method::kFavor, Method::kExact, Method::kAuto}) {
    EXPECT_EQ(method_from_string(to_string(method)), method);
  }
  EXPECT_EQ(test::error_of([] { method_from_string("fast"); }),
            "method is 'fast', expected favor | exact | auto");
  EXPECT_EQ(test::error_of([] {
              resolve_method(Method::kAuto, {1, 1, -2, 1, 1, false});
            }),
            "resolve_method: L, S, D, E, M are 1, 1, -2, 1, 1, expected no negative size");
}

}  // namespace
}  // namespace favor
