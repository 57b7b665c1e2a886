// SPDX-License-Identifier: Apache-2.0
// The built-in thread pool: threads claim tasks from one atomic counter, spin for some microseconds
// when there is nothing to do, then sleep.
#include "favor/parallel.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "favor/check.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace favor {
namespace {

constexpr int kMaxThreads = 1024;
// About 20 microseconds: longer than the gap between two passes of one layer, far shorter than a
// scheduler's time slice.
constexpr int kSpins = 1000;

using Body = std::function<void(int64_t)>;

thread_local bool inside_task = false;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// While it lives, whatever this thread calls stays in this thread.
class InsideTask {
 public:
  InsideTask() : outer_(std::exchange(inside_task, true)) {}
  ~InsideTask() { inside_task = outer_; }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;

 private:
  bool outer_;
};

void run_inline(int64_t num_tasks, const Body& body) {
  const InsideTask inside;
  for (int64_t i = 0; i < num_tasks; ++i) body(i);
}

class Pool {
 public:
  explicit Pool(int threads) {
    workers_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    stop_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t num_tasks, const Body& body) {
    // A second host thread does its work itself instead of queueing behind the first.
    std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (!lock.owns_lock() || workers_.empty() || num_tasks == 1) {
      run_inline(num_tasks, body);
      return;
    }
    body_ = &body;
    num_tasks_ = num_tasks;
    next_.store(0, std::memory_order_relaxed);
    open_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    claim_tasks();
    // Close, then wait for those inside. A worker enters before it looks at `open_`, both
    // sequentially consistent, so it either sees the door shut or is waited for.
    open_.store(false);
    for (int spins = 0;;) {
      const uint32_t inside = inside_.load();
      if (inside == 0) break;
      if (spins++ < kSpins) {
        pause();
      } else {
        inside_.wait(inside);
      }
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  // Stops at an exception, which is kept if it is the first; other threads finish their tasks.
  void claim_tasks() {
    const InsideTask inside;
    try {
      while (true) {
        const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= num_tasks_) break;
        (*body_)(i);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void work() {
    uint32_t seen = 0;
    while (true) {
      for (int spins = 0; spins < kSpins && generation_.load() == seen; ++spins) pause();
      generation_.wait(seen);
      seen = generation_.load();
      if (stop_.load()) return;
      inside_.fetch_add(1);
      if (open_.load()) claim_tasks();
      if (inside_.fetch_sub(1) == 1) inside_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex busy_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const Body* body_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> generation_{0};  // raised for each job and at the end
  std::atomic<bool> open_{false};        // body_ and num_tasks_ may be read
  std::atomic<uint32_t> inside_{0};      // workers that may be reading them
  std::atomic<bool> stop_{false};
};

int initial_threads() {
  const char* text = std::getenv("FAVOR_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  }
  int threads = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, threads);
  FAVOR_CHECK(
      result.ec == std::errc() && result.ptr == end && threads >= 1 && threads <= kMaxThreads,
      "parallel_for: environment variable FAVOR_NUM_THREADS is '", text,
      "', expected a whole number from 1 to ", kMaxThreads);
  return threads;
}

// Created at the first use, so that a wrong FAVOR_NUM_THREADS throws where it can be caught.
struct Splitter {
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  ParallelFor replacement;
};

Splitter& splitter() {
  static Splitter instance;
  return instance;
}

std::shared_ptr<Pool> built_in_pool() {
  Splitter& s = splitter();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.pool) s.pool = std::make_shared<Pool>(initial_threads());
  return s.pool;
}

}  // namespace

void set_parallel_for(ParallelFor parallel_for) {
  splitter().replacement = std::move(parallel_for);
}

int num_threads() {
  return built_in_pool()->size();
}

void set_num_threads(int threads) {
  FAVOR_CHECK(threads >= 1 && threads <= kMaxThreads, "set_num_threads: threads is ", threads,
              ", expected 1 to ", kMaxThreads);
  Splitter& s = splitter();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.pool || s.pool->size() != threads) s.pool = std::make_shared<Pool>(threads);
}

void parallel_for(int64_t num_tasks, const std::function<void(int64_t)>& body) {
  if (num_tasks <= 0) return;
  if (inside_task) {
    run_inline(num_tasks, body);
    return;
  }
  const ParallelFor& replacement = splitter().replacement;
  if (!replacement) {
    built_in_pool()->run(num_tasks, body);
    return;
  }
  replacement(num_tasks, [&body](int64_t i) {
    const InsideTask inside;
    body(i);
  });
}

}  // namespace favor
