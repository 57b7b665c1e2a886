// SPDX-License-Identifier: Apache-2.0
// Attention by random features, in linear time: FAVOR+ and its relatives, alone, beside near keys
// that are scored exactly, and within clusters.
#ifndef PERFORMER_NN_ATTENTION_FAVOR_H_
#define PERFORMER_NN_ATTENTION_FAVOR_H_

#include "favor/projection.h"
#include "performer/nn/attention_core.h"
#include "performer/ops/arguments.h"

namespace performer {

/// Buffer: projection [P, M, D] with P = 1 or H, unless the map acts on q and k themselves.
class FavorCore : public AttentionCore {
 public:
  FavorCore(const AttentionCoreOptions& options, torch::nn::Module& owner);

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;
  torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       HeadsState& state) override;
  HeadsState blank_state(int64_t B, int64_t position) const override;
  void check_state(const std::string& where, const HeadsState& state, int64_t B,
                   int64_t position) const override;
  void redraw(uint32_t index) override;

  /// The arguments of a call. The buffer is what checkpoints hold, and may have been written to.
  FavorArguments call_arguments();

 protected:
  const AttentionCoreOptions& options() const { return options_; }

 private:
  favor::ProjectionSpec spec_of_head(int64_t head) const;
  torch::Tensor draw() const;
  bool has_transform() const;
  int64_t num_state_features() const;

  AttentionCoreOptions options_;
  FavorArguments arguments_;  // its projection is the registered buffer
  uint32_t redraw_index_ = 0;
  torch::Tensor compact_;       // what redraw drew, where a fast transform serves it
  bool holds_drawn_ = false;    // whether the buffer's rows are the drawn ones
  uint32_t known_version_ = 0;  // of the buffer when holds_drawn_ was found
};

/// Linear attention by the features elu(x) + 1 of q and k themselves (Katharopoulos et al. 2020).
std::unique_ptr<AttentionCore> make_linear_core(AttentionCoreOptions options,
                                                torch::nn::Module& owner);

/// Random features within clusters: keys are clustered by k-means, and a query sees the keys of the
/// cluster whose mean is next to it, by the core's features. Bidirectional.
class FavorClustersCore : public FavorCore {
 public:
  using FavorCore::FavorCore;

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;
  torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       HeadsState& state) override {
    return AttentionCore::decode(q, k, v, state);
  }
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_FAVOR_H_
