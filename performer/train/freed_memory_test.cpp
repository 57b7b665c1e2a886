// SPDX-License-Identifier: Apache-2.0
#include "performer/train/freed_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "performer/train/metrics.h"

namespace performer {
namespace {

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kOfGlibc = true;
#else
constexpr bool kOfGlibc = false;
#endif
constexpr size_t kBlock = 100000, kNumBlocks = 600;

// Two steps whose small blocks stay, each behind a large one that is freed: what glibc keeps of the
// first large ones fits none of the second, which are larger. Returns the bytes held at the end.
int64_t run_steps(bool trims) {
  keep_freed_memory();
  HoleTrimmer trimmer;
  std::vector<std::unique_ptr<char[]>> small;
  for (size_t step = 0; step < 2; ++step) {
    std::vector<std::unique_ptr<char[]>> large;
    for (size_t i = 0; i < kNumBlocks / (step + 1); ++i) {
      const size_t size = kBlock * (step + 1);
      large.emplace_back(new char[size]);
      std::fill_n(large.back().get(), size, 1);
      small.emplace_back(new char[64]);
    }
    large.clear();
    if (trims) trimmer.step();
  }
  return resident_bytes();
}

// In a process of its own, whose allocator nothing else has used.
int64_t held_in_a_process(bool trims) {
  int ends[2] = {};
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const int64_t held = run_steps(trims);
    const bool written = write(ends[1], &held, sizeof held) == sizeof held;
    _exit(written ? 0 : 1);
  }
  int64_t held = -1;
  if (read(ends[0], &held, sizeof held) != sizeof held) held = -1;
  close(ends[0]);
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? held : -1;
}

TEST(FreedMemory, HolesAreGivenBack) {
  if (!kOfGlibc) GTEST_SKIP() << "the allocator is not glibc's";
  const int64_t kept = held_in_a_process(false), trimmed = held_in_a_process(true);
  const auto of_a_step = static_cast<int64_t>(kBlock * kNumBlocks);
  EXPECT_GT(kept, of_a_step + of_a_step / 2);
  EXPECT_GT(trimmed, 0);
  EXPECT_LT(trimmed, of_a_step / 2);
}

}  // namespace
}  // namespace performer
