// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

struct Candidate {
  int64_t id = 0;
  double weight = 0;
};

}  // namespace

void SamplingOptions::check() const {
  FAVOR_CHECK(temperature >= 0 && std::isfinite(temperature), "temperature is ", temperature,
              ", expected a number of at least 0");
  FAVOR_CHECK(top_k >= 0, "top_k is ", top_k, ", expected at least 0");
  FAVOR_CHECK(top_p > 0 && top_p <= 1, "top_p is ", top_p, ", expected a number in (0, 1]");
  FAVOR_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty), "repetition_penalty is ",
              repetition_penalty, ", expected a number above 0");
  FAVOR_CHECK(penalty_window >= 1 && penalty_window <= RecentTokens::kMost, "penalty_window is ",
              penalty_window, ", expected 1 to ", RecentTokens::kMost);
  FAVOR_CHECK(max_length >= 1, "max_length is ", max_length, ", expected at least 1");
}

void RecentTokens::add(int64_t id) {
  if (std::ssize(ring_) < kMost) {
    ring_.push_back(static_cast<uint8_t>(id));
    return;
  }
  ring_[next_] = static_cast<uint8_t>(id);
  next_ = (next_ + 1) % kMost;
}

std::vector<uint8_t> RecentTokens::last(int64_t count) const {
  const int64_t size = std::ssize(ring_);
  std::vector<uint8_t> ids;
  for (int64_t i = size - std::min(count, size); i < size; ++i) {
    ids.push_back(ring_[(next_ + i) % size]);
  }
  return ids;
}

std::array<bool, 256> RecentTokens::seen(int64_t count) const {
  std::array<bool, 256> marked{};
  const int64_t size = std::ssize(ring_);
  for (int64_t i = size - std::min(count, size); i < size; ++i) {
    marked[ring_[(next_ + i) % size]] = true;
  }
  return marked;
}

void penalise(std::span<float> logits, const std::array<bool, 256>& marked, double penalty) {
  const size_t count = std::min(logits.size(), marked.size());
  for (size_t id = 0; id < count; ++id) {
    if (!marked[id]) continue;
    const double logit = logits[id];
    logits[id] = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     int64_t num_letters, int64_t end, favor::RandomStream& random) {
  std::vector<Candidate> candidates;
  for (int64_t id = 0; id < std::ssize(logits); ++id) {
    if (id >= num_letters && (id != end || options.ignore_end)) continue;
    if (!std::isfinite(logits[id])) {
      throw std::runtime_error(favor::message("generate: logit of token ", id, " is ", logits[id],
                                              ", expected a finite number (the model's weights "
                                              "are damaged or its training diverged)"));
    }
    candidates.push_back({id, logits[id]});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
  if (options.temperature == 0) return candidates.front().id;
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    candidates.resize(options.top_k);
  }
  const double largest = candidates.front().weight;
  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((candidate.weight - largest) / options.temperature);
    total += candidate.weight;
  }
  // The smallest set of most probable tokens that holds top_p of the mass.
  double kept = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < options.top_p * total)) {
    kept += candidates[count++].weight;
  }
  double left = random.uniform() * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= candidates[i].weight;
    if (left < 0) return candidates[i].id;
  }
  return candidates[count - 1].id;
}

double log_probability(std::span<const float> logits, int64_t id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - largest);
  return logits[id] - largest - std::log(total);
}

}  // namespace performer
