// SPDX-License-Identifier: Apache-2.0
// Attention by locality-sensitive hashing (Reformer, Kitaev et al. 2020).
#ifndef PERFORMER_NN_ATTENTION_LSH_H_
#define PERFORMER_NN_ATTENTION_LSH_H_

#include "performer/nn/attention_core.h"

namespace performer {

/// Queries are keys: k is not used, keys are the queries at unit length. In each of hash_rounds
/// rounds a token falls into one of hash_buckets buckets, whose tokens, in order, form blocks of
/// bucket_block; it sees those of its own and the neighbouring blocks (causal: the one before, up
/// to itself) without itself. A key met in several rounds counts several times. A token that meets
/// none sees itself. Masked tokens are in no bucket, and their rows are 0.
/// Buffer: projection [hash_rounds, hash_buckets / 2, D], normal numbers.
class LshCore : public AttentionCore {
 public:
  LshCore(const AttentionCoreOptions& options, torch::nn::Module& owner);

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;
  torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       HeadsState& state) override;
  HeadsState blank_state(int64_t B, int64_t position) const override;
  void redraw(uint32_t index) override;

 private:
  torch::Tensor hashes(const torch::Tensor& q) const;
  torch::Tensor step(const torch::Tensor& q, const torch::Tensor& v, KeyCache& cache) const;

  AttentionCoreOptions options_;
  torch::Tensor projection_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_LSH_H_
