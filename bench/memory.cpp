// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <malloc.h>
#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "favor/parallel.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FAVOR_SANITIZED 1
#endif
#endif
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(FAVOR_SANITIZED)
#define FAVOR_COUNTS_MEMORY 1
#else
#define FAVOR_COUNTS_MEMORY 0
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> live_bytes{0}, largest_bytes{0};

}  // namespace

#if FAVOR_COUNTS_MEMORY

extern "C" {

void* __libc_malloc(size_t) noexcept;
void* __libc_calloc(size_t, size_t) noexcept;
void* __libc_realloc(void*, size_t) noexcept;
void* __libc_memalign(size_t, size_t) noexcept;
void __libc_free(void*) noexcept;

}  // extern "C"

namespace {

void add(int64_t bytes) {
  const int64_t live = live_bytes.fetch_add(bytes) + bytes;
  int64_t largest = largest_bytes.load();
  while (live > largest && !largest_bytes.compare_exchange_weak(largest, live)) {
  }
}

void* counted(void* block) {
  if (counting.load(std::memory_order_relaxed) && block != nullptr) {
    add(static_cast<int64_t>(malloc_usable_size(block)));
  }
  return block;
}

void uncount(void* block) {
  if (counting.load(std::memory_order_relaxed) && block != nullptr) {
    add(-static_cast<int64_t>(malloc_usable_size(block)));
  }
}

}  // namespace

extern "C" {

void* malloc(size_t size) noexcept {
  return counted(__libc_malloc(size));
}
void* calloc(size_t count, size_t size) noexcept {
  return counted(__libc_calloc(count, size));
}
void* memalign(size_t alignment, size_t size) noexcept {
  return counted(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return counted(__libc_memalign(alignment, size));
}
int posix_memalign(void** block, size_t alignment, size_t size) noexcept {
  void* memory = counted(__libc_memalign(alignment, size));
  if (memory == nullptr) return ENOMEM;
  *block = memory;
  return 0;
}
void* realloc(void* block, size_t size) noexcept {
  uncount(block);
  return counted(__libc_realloc(block, size));
}
void free(void* block) noexcept {
  uncount(block);
  __libc_free(block);
}

}  // extern "C"

#endif  // FAVOR_COUNTS_MEMORY

namespace favor::bench {

std::optional<int64_t> extra_bytes(int threads, const std::function<void()>& call) {
  if (!FAVOR_COUNTS_MEMORY) return std::nullopt;
  if (threads > 1) {
    set_num_threads(1);
    set_num_threads(threads);
  }
  std::thread fresh([&] {
    live_bytes = 0;
    largest_bytes = 0;
    counting = true;
    call();
    counting = false;
  });
  fresh.join();
  return largest_bytes.load();
}

}  // namespace favor::bench
