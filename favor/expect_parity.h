// SPDX-License-Identifier: Apache-2.0
// Tests: holds the kernels' results for one problem against the reference, on every instruction set
// and several thread counts.
#ifndef FAVOR_EXPECT_PARITY_H_
#define FAVOR_EXPECT_PARITY_H_

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "favor/parallel.h"
#include "favor/testing.h"

namespace favor::test {

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void expect_parity(const Case& spec) {
  SCOPED_TRACE(spec.name());
  const Problem problem = make_problem(spec);
  const Judge judge(problem);
  for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    set_num_threads(1);
    const Results<float> single = run_kernel(problem);
    EXPECT_EQ(judge.verdict(single), "");
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      const Results<float> several = run_kernel(problem);
      EXPECT_TRUE(same_bits(single.out, several.out)) << threads << " threads";
      EXPECT_TRUE(same_bits(single.dq, several.dq)) << threads << " threads";
      EXPECT_TRUE(same_bits(single.dk, several.dk)) << threads << " threads";
      EXPECT_TRUE(same_bits(single.dv, several.dv)) << threads << " threads";
    }
    set_num_threads(1);
  });
}

}  // namespace favor::test

#endif  // FAVOR_EXPECT_PARITY_H_
