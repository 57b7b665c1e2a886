// SPDX-License-Identifier: Apache-2.0
#include "performer/train/prefetch.h"

#include <utility>

namespace performer {

Prefetch::Prefetch(std::unique_ptr<TrainSource> batches, size_t depth)
    : batches_(std::move(batches)), depth_(depth), position_(batches_->position()) {}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

Batch Prefetch::next() {
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !made_.empty() || failure_; });
  // What was made before the failure comes first, as it would without a thread.
  if (made_.empty()) std::rethrow_exception(failure_);
  Made made = std::move(made_.front());
  made_.pop_front();
  lock.unlock();
  changed_.notify_all();
  position_ = made.after;
  return std::move(made.batch);
}

void Prefetch::work() {
  try {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return made_.size() < depth_ || stop_; });
        if (stop_) return;
      }
      Made made{batches_->next(), batches_->position()};
      {
        const std::lock_guard lock(mutex_);
        made_.push_back(std::move(made));
      }
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

}  // namespace performer
