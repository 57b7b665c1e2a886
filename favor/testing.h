// SPDX-License-Identifier: Apache-2.0
// What tests and the benchmark share: every instruction set in turn, guarded buffers, random
// attention problems, and the rule that judges a kernel by the error of the naive float code. No
// gtest here.
#ifndef FAVOR_TESTING_H_
#define FAVOR_TESTING_H_

#include <hwy/targets.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/isa.h"
#include "favor/testing_buffer.h"
#include "favor/testing_errors.h"
#include "favor/testing_judge.h"
#include "favor/testing_problem.h"
#include "favor/testing_runs.h"

namespace favor::test {

/// Calls body(name) once for every instruction set that was compiled and that this CPU has, with
/// dispatch pinned to it. Afterwards dispatch is free again.
template <class Body>
void for_each_isa(const Body& body) {
  struct Release {
    ~Release() { hwy::SetSupportedTargetsForTest(0); }
  } release;
  apply_isa_limit();
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.empty()) throw std::logic_error("for_each_isa: no instruction set to test");
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
  }
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_H_
