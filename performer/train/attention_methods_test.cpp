// SPDX-License-Identifier: Apache-2.0
// The trainer with every method of attention.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "performer/train/checkpoint.h"
#include "performer/train/estimate.h"
#include "performer/train/testing.h"
#include "performer/train/trainer.h"

namespace performer {
namespace {

TEST_F(Train, EveryMethodOfAttentionTrainsResumesAndLoads) {
  const std::string data = random_fasta(60);
  for (const AttentionMethod method : attention_methods()) {
    for (const bool causal : {true, false}) {
      if (causal && !has_causal_form(method)) continue;
      SCOPED_TRACE(to_string(method));
      const auto configure = [&](const std::string& run) {
        TrainConfig config = tiny(data, to_string(method) + (causal ? "-causal-" : "-") + run);
        config.model.causal = causal;
        AttentionOptions& attention = config.model.attention;
        attention.method = method;
        attention.redraw_interval = 3;
        attention.local_window = 8;
        attention.hash_buckets = 4;
        attention.bucket_block = 8;
        attention.num_clusters = 4;
        attention.cluster_top = 4;
        attention.local_heads = method == AttentionMethod::kWindow ? 0 : 1;
        config.run.max_steps = 4;
        return config;
      };
      const TrainConfig straight = configure("straight");
      train(straight);
      TrainConfig parts = configure("parts");
      parts.run.max_steps = 2;
      train(parts);
      parts.run.max_steps = 4;
      parts.run.resume = "auto";
      train(parts);
      LoadedModel a = load_model(straight.run.out), b = load_model(parts.run.out);
      EXPECT_EQ(a.model->config().attention.method, method);
      int64_t count = 0;
      for (const auto& parameter : a.model->parameters()) count += parameter.numel();
      EXPECT_EQ(count, count_parameters(straight.model).total());
      const auto expected = a.model->named_parameters();
      for (const auto& item : b.model->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
        EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << item.key();
      }
      if (causal) continue;
      // Weights of another method serve as they are, where the method has no more of them.
      TrainConfig moved = configure("moved");
      moved.model.attention.method = AttentionMethod::kExact;
      moved.run.init_from = straight.run.out;
      moved.run.max_steps = 0;
      const std::string text = error_of([&] { train(moved); });
      if (method == AttentionMethod::kLinformer) {
        EXPECT_NE(text.find("key_mixtures"), std::string::npos) << text;
        EXPECT_NE(text.find("is not in the model"), std::string::npos) << text;
      } else {
        EXPECT_EQ(text, "no error");
      }
    }
  }
}

}  // namespace
}  // namespace performer
