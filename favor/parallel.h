// SPDX-License-Identifier: Apache-2.0
// Splits independent tasks over threads. The host may replace the splitter, so that two thread
// pools never fight for the cores. Nothing else in favor/ spawns threads.
#ifndef FAVOR_PARALLEL_H_
#define FAVOR_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace favor {

/// Runs body(0) ... body(num_tasks - 1), each once, in any order and on any thread; returns when
/// all are done. If tasks throw, some tasks may be left out, and the first exception is rethrown
/// when every thread has come back.
using ParallelFor =
    std::function<void(int64_t num_tasks, const std::function<void(int64_t)>& body)>;

/// Replaces the splitter used by every later call; an empty function restores the built-in pool.
/// Not to be called while an operation of this library runs.
void set_parallel_for(ParallelFor parallel_for);

/// Number of threads of the built-in pool. At first the environment variable FAVOR_NUM_THREADS, or
/// else the hardware's. Results never depend on it.
int num_threads();

/// Sets the size of the built-in pool; throws favor::Error unless 1 <= threads <= 1024.
void set_num_threads(int threads);

/// Runs the tasks through the current splitter. Nested calls run in the calling thread.
void parallel_for(int64_t num_tasks, const std::function<void(int64_t)>& body);

}  // namespace favor

#endif  // FAVOR_PARALLEL_H_
