// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/work.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace performer {
namespace {

using Batches = std::vector<std::vector<int64_t>>;

TEST(PlanBatches, LongestFirstWithinTheBound) {
  EXPECT_EQ(plan_batches({3, 10, 5, 0, 5, 40}, 20), (Batches{{5}, {1, 2}, {4, 0}}));
  EXPECT_EQ(plan_batches({4, 4, 4, 4, 4}, 8), (Batches{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(plan_batches({0, 0}, 8), Batches());
  EXPECT_EQ(plan_batches({}, 8), Batches());
}

TEST(ComputeHalving, HalvesUntilItFits) {
  std::vector<int64_t> batch(13);
  for (size_t i = 0; i < batch.size(); ++i) batch[i] = static_cast<int64_t>(i);
  std::vector<int64_t> seen;
  int calls = 0;
  const auto failures = compute_halving(batch, [&](std::span<const int64_t> part) {
    ++calls;
    if (part.size() > 4) throw std::bad_alloc();
    if (std::find(part.begin(), part.end(), 6) != part.end()) {
      throw std::runtime_error("[enforce fail] DefaultCPUAllocator: can't allocate memory: you");
    }
    seen.insert(seen.end(), part.begin(), part.end());
  });
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].item, 6);
  EXPECT_EQ(failures[0].reason, "out of memory");
  // Each of the others once, in order.
  std::vector<int64_t> expected = batch;
  expected.erase(expected.begin() + 6);
  EXPECT_EQ(seen, expected);
  EXPECT_GT(calls, 4);
}

TEST(ComputeHalving, KnowsWhatTorchSaysWithoutMemory) {
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("could not create a primitive")));
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("file: cannot be written")));
}

TEST(ComputeHalving, OtherErrorsPass) {
  const std::vector<int64_t> batch = {1, 2, 3, 4};
  int calls = 0;
  EXPECT_THROW(compute_halving(batch,
                               [&](std::span<const int64_t>) {
                                 ++calls;
                                 throw std::runtime_error("broken");
                               }),
               std::runtime_error);
  EXPECT_EQ(calls, 1);
}

TEST(LimitMemory, MakesLargeAllocationsFail) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer reserves terabytes, and ends the process where memory is out";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &before), 0);
  const size_t size = size_t{1} << 30;
  EXPECT_EQ(limit_memory(int64_t{512} << 20), int64_t{512} << 20);
  // Volatile: what nobody sees need not be allocated.
  char* volatile memory = nullptr;
  EXPECT_THROW(memory = new char[size], std::bad_alloc);
  delete[] memory;
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_GT(limit_memory(0), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &before), 0);
}

}  // namespace
}  // namespace performer
