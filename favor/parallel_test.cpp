// SPDX-License-Identifier: Apache-2.0
#include "favor/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "favor/check.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

class Parallel : public testing::Test {
 protected:
  void TearDown() override {
    set_parallel_for({});
    set_num_threads(1);
  }
};

// Every task once, whatever the number of tasks and threads.
void expect_each_task_once(int64_t num_tasks) {
  std::vector<std::atomic<int>> counts(num_tasks);
  parallel_for(num_tasks, [&](int64_t i) { counts[i].fetch_add(1); });
  for (int64_t i = 0; i < num_tasks; ++i) ASSERT_EQ(counts[i].load(), 1) << "task " << i;
}

TEST_F(Parallel, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 1000}) expect_each_task_once(tasks);
    for (int repeat = 0; repeat < 500; ++repeat) expect_each_task_once(5);
  }
}

TEST_F(Parallel, SeesWhatTasksWrote) {
  set_num_threads(3);
  std::vector<int64_t> plain(100);
  for (int64_t repeat = 0; repeat < 200; ++repeat) {
    parallel_for(100, [&](int64_t i) { plain[i] += i; });
  }
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(plain[i], 200 * i);
}

TEST_F(Parallel, WakesSleepingWorkers) {
  set_num_threads(2);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // The two tasks wait for each other, so that one thread alone could not finish them.
    std::atomic<int> started{0};
    parallel_for(2, [&](int64_t) {
      started.fetch_add(1);
      while (started.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(started.load(), 2);
  }
}

TEST_F(Parallel, NestedCallsStayInTheirThread) {
  set_num_threads(3);
  std::atomic<int> total{0};
  std::atomic<bool> moved{false};
  parallel_for(10, [&](int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(10, [&](int64_t) {
      if (std::this_thread::get_id() != here) moved = true;
      parallel_for(2, [&](int64_t) { total.fetch_add(1); });
    });
  });
  EXPECT_EQ(total.load(), 200);
  EXPECT_FALSE(moved.load());
}

TEST_F(Parallel, HostThreadsMayCallAtOnce) {
  set_num_threads(2);
  std::atomic<int> total{0};
  std::vector<std::thread> hosts;
  for (int t = 0; t < 3; ++t) {
    hosts.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        parallel_for(7, [&](int64_t) { total.fetch_add(1); });
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(total.load(), 3 * 100 * 7);
}

TEST_F(Parallel, UsesTheReplacedSplitter) {
  int calls = 0;
  set_parallel_for([&](int64_t num_tasks, const std::function<void(int64_t)>& body) {
    ++calls;
    for (int64_t i = num_tasks - 1; i >= 0; --i) body(i);
  });
  std::vector<int64_t> order;
  parallel_for(4, [&](int64_t i) {
    order.push_back(i);
    parallel_for(2, [&](int64_t) {});
  });
  EXPECT_EQ(order, (std::vector<int64_t>{3, 2, 1, 0}));
  EXPECT_EQ(calls, 1) << "nested calls must not reach the host's splitter";
  set_parallel_for({});
  expect_each_task_once(10);
  EXPECT_EQ(calls, 1);
}

TEST_F(Parallel, RefusesThreadCountsOutOfRange) {
  for (const int threads : {0, -1, 1025}) {
    EXPECT_EQ(test::error_of([&] { set_num_threads(threads); }),
              message("set_num_threads: threads is ", threads, ", expected 1 to 1024"));
  }
}

// The variable is read once per process, hence a process of its own for each value.
void exit_with_thread_count(const char* value) {
  setenv("FAVOR_NUM_THREADS", value, 1);
  try {
    std::exit(num_threads());
  } catch (const Error& error) {
    fprintf(stderr, "%s\n", error.what());
    std::exit(100);
  }
}

using ParallelDeathTest = Parallel;

TEST_F(ParallelDeathTest, ReadsTheEnvironment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(exit_with_thread_count("3"), testing::ExitedWithCode(3), "");
  for (const char* value : {"0", "-2", "two", "3x", "4096"}) {
    EXPECT_EXIT(exit_with_thread_count(value), testing::ExitedWithCode(100),
                "parallel_for: environment variable FAVOR_NUM_THREADS is '.*', expected a whole "
                "number from 1 to 1024");
  }
}

TEST(ParallelFor, PassesOnTheFirstExceptionAndGoesOnWorking) {
  set_num_threads(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(parallel_for(100,
                              [](int64_t i) {
                                if (i % 7 == 3) throw Error("task failed");
                              }),
                 Error);
  }
  std::atomic<int64_t> done{0};
  std::atomic<int> elsewhere{0};
  const std::thread::id caller = std::this_thread::get_id();
  // Tasks long enough that another thread gets some.
  parallel_for(60, [&](int64_t) {
    done.fetch_add(1);
    if (std::this_thread::get_id() != caller) elsewhere.fetch_add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  EXPECT_EQ(done.load(), 60);
  EXPECT_GT(elsewhere.load(), 0);
  set_num_threads(1);
  EXPECT_THROW(parallel_for(3, [](int64_t) { throw Error("task failed"); }), Error);
}

}  // namespace
}  // namespace favor
