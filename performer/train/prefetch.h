// SPDX-License-Identifier: Apache-2.0
// Training batches made ahead of their use, off the training thread. No torch here.
#ifndef PERFORMER_TRAIN_PREFETCH_H_
#define PERFORMER_TRAIN_PREFETCH_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "performer/data/batches.h"

namespace performer {

/// The batches of a TrainSource in their order, up to `depth` of them waiting.
class Prefetch {
 public:
  /// Takes the batches where they stand. The thread starts with the first next().
  explicit Prefetch(std::unique_ptr<TrainSource> batches, size_t depth = 2);
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// As TrainSource::next; throws what that threw.
  Batch next();
  /// Of the batch that next() returns next, whatever was made ahead.
  BatchPosition position() const { return position_; }

 private:
  struct Made {
    Batch batch;
    BatchPosition after;
  };
  void work();

  std::unique_ptr<TrainSource> batches_;  // the worker's alone once it runs
  const size_t depth_;
  BatchPosition position_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Made> made_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace performer

#endif  // PERFORMER_TRAIN_PREFETCH_H_
