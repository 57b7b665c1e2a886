// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/work.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "favor/check.h"

namespace performer {
namespace {

// A value in kB of /proc/meminfo or /proc/self/status, in bytes; 0 where there is none.
int64_t proc_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    return 1024 * std::strtoll(line.c_str() + key.size(), nullptr, 10);
  }
  return 0;
}

}  // namespace

std::vector<std::vector<int64_t>> plan_batches(const std::vector<int64_t>& lengths,
                                               int64_t tokens_per_batch) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<int64_t>> batches;
  int64_t longest = 0;
  for (const int64_t item : order) {
    if (lengths[item] == 0) break;
    if (batches.empty() || (std::ssize(batches.back()) + 1) * longest > tokens_per_batch) {
      batches.emplace_back();
      longest = lengths[item];
    }
    batches.back().push_back(item);
  }
  return batches;
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  // Torch's allocator, and oneDNN below it, which says no more than this.
  constexpr std::string_view kTexts[] = {
      "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
      "could not create a primitive", "could not execute a primitive"};
  const std::string_view text = error.what();
  return std::any_of(std::begin(kTexts), std::end(kTexts), [&](std::string_view known) {
    return text.find(known) != std::string_view::npos;
  });
}

std::vector<WorkFailure> compute_halving(
    std::span<const int64_t> batch, const std::function<void(std::span<const int64_t>)>& compute) {
  try {
    compute(batch);
    return {};
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    if (batch.size() <= 1) {
      if (batch.empty()) return {};
      return {{batch[0], "out of memory"}};
    }
  }
  // Outside the handler: what the failed attempt held is free by here.
  const size_t half = batch.size() / 2;
  std::vector<WorkFailure> failures = compute_halving(batch.subspan(0, half), compute);
  for (WorkFailure& failure : compute_halving(batch.subspan(half), compute)) {
    failures.push_back(std::move(failure));
  }
  return failures;
}

int64_t limit_memory(int64_t bytes) {
  if (bytes == 0) {
    const int64_t available = proc_value("/proc/meminfo", "MemAvailable:");
    if (available == 0) return 0;
    bytes = available + proc_value("/proc/self/status", "VmData:");
  }
  // Data, not address space: mapped weights and reserved arenas are no allocations.
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return 0;
  limit.rlim_cur = std::min(static_cast<rlim_t>(bytes), limit.rlim_max);
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) {
    throw std::runtime_error(
        favor::message("memory cannot be limited to ", bytes, " bytes: ", std::strerror(errno)));
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace performer
