// SPDX-License-Identifier: Apache-2.0
// What tests of layers and models share.
#ifndef PERFORMER_NN_TESTING_H_
#define PERFORMER_NN_TESTING_H_

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "favor/check.h"

namespace performer {

/// The largest absolute difference.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// Counts the memory of tensors that this thread makes and frees during its lifetime.
class TensorMemory {
 public:
  TensorMemory()
      : counter_(std::make_shared<Counter>()),
        guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  int64_t now() const { return counter_->now; }    ///< bytes, less what was freed of before
  int64_t peak() const { return counter_->peak; }  ///< most bytes at any time

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    int64_t now = 0, peak = 0;

    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

/// What favor::Error says, or that there was none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no favor::Error";
}

}  // namespace performer

#endif  // PERFORMER_NN_TESTING_H_
