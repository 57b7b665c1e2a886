// SPDX-License-Identifier: Apache-2.0
// Counts the heap memory of one call by standing in for malloc and its kin, which operator new and
// Highway's aligned allocator end in as well. Exact to the block, unlike the resident set, which
// does not see memory that is used again.
#ifndef BENCH_MEMORY_H_
#define BENCH_MEMORY_H_

#include <cstdint>
#include <functional>
#include <optional>

namespace favor::bench {

/// Largest number of heap bytes live at one time that `call` allocated, in all threads together.
/// The call runs in a fresh thread, and with more than one thread in a fresh pool, so that scratch
/// memory that threads keep is counted too. Empty where malloc cannot be stood in for: C libraries
/// other than glibc, and builds with a sanitizer.
std::optional<int64_t> extra_bytes(int threads, const std::function<void()>& call);

}  // namespace favor::bench

#endif  // BENCH_MEMORY_H_
