// SPDX-License-Identifier: Apache-2.0
// How the next token is drawn from a model's logits. No torch here.
#ifndef PERFORMER_INFER_SAMPLING_H_
#define PERFORMER_INFER_SAMPLING_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "favor/random.h"

namespace performer {

struct SamplingOptions {
  double temperature = 1.0;         ///< divides the logits; 0 takes the most probable token
  int64_t top_k = 0;                ///< only the k most probable tokens; 0: all
  double top_p = 1.0;               ///< only the most probable that reach this share, in (0, 1]
  double repetition_penalty = 1.0;  ///< above 0: see penalise; 1: none
  int64_t penalty_window = 64;      ///< letters back that are penalised, 1 to RecentTokens::kMost
  bool ignore_end = false;          ///< never draw the end token
  int64_t max_length = 1024;        ///< letters per sequence, prompt included, >= 1

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// The last letters of a stream, in constant memory.
class RecentTokens {
 public:
  static constexpr int64_t kMost = 4096;

  void add(int64_t id);
  /// The last `count` of them or all there are, oldest first.
  std::vector<uint8_t> last(int64_t count) const;
  /// Whether `id` is among the last `count`, for each id.
  std::array<bool, 256> seen(int64_t count) const;

 private:
  std::vector<uint8_t> ring_;
  int64_t next_ = 0;  // where the oldest is, once the ring is full
};

/// The penalty of Keskar et al. (2019): the logits of the marked tokens are divided by `penalty`
/// where positive and multiplied by it where negative. Above 1 it discourages repetition.
void penalise(std::span<float> logits, const std::array<bool, 256>& marked, double penalty);

/// Draws one id from softmax(logits / temperature) restricted by top_k, top_p and to ids below
/// `num_letters` or equal to `end` (unless ignore_end). Ties are broken towards the smaller id.
/// O(V log V). Throws std::runtime_error when a logit of an allowed id is NaN or infinite.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     int64_t num_letters, int64_t end, favor::RandomStream& random);

/// log softmax(logits)[id], over all tokens.
double log_probability(std::span<const float> logits, int64_t id);

}  // namespace performer

#endif  // PERFORMER_INFER_SAMPLING_H_
