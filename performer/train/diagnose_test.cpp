// SPDX-License-Identifier: Apache-2.0
#include "performer/train/diagnose.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "performer/nn/attention.h"
#include "performer/train/testing.h"
#include "performer/train/trainer.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using torch::Tensor;

class Diagnose : public Train {};

TEST_F(Diagnose, NormsErrorsAndVarianceAreThoseOfTheirDefinitions) {
  torch::manual_seed(2);
  const int64_t H = 2, L = 9, D = 4;
  for (const bool causal : {false, true}) {
    const Tensor q = torch::randn({1, H, L, D}), k = torch::randn({1, H, L, D});
    const Tensor v = torch::randn({1, H, L, D}), out = torch::randn({1, H, L, D});
    AttentionOptions options;
    options.num_features = 6;
    double query = 0, key = 0, exact_square = 0, error = 0, uniform_error = 0, distance = 0, z = 0,
           d = 0;
    const auto at = [&](const Tensor& t, int64_t h, int64_t i, int64_t c) {
      return double(t[0][h][i][c].item<float>());
    };
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < L; ++i) {
        for (int64_t c = 0; c < D; ++c) {
          query += std::pow(at(q, h, i, c), 2) / 2 / double(H * L);  // D^(-1/4) squared is 1/2
          key += std::pow(at(k, h, i, c), 2) / 2 / double(H * L);
        }
        const int64_t reach = causal ? i + 1 : L;
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = 0; j < reach; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < D; ++c) dot += at(q, h, i, c) * at(k, h, j, c) / 2;
          weights.push_back(std::exp(dot));
          sum += weights.back();
        }
        for (int64_t j = 0; j < reach; ++j) {
          for (int64_t c = 0; c < D; ++c) {
            const double plus = std::pow(at(q, h, i, c) + at(k, h, j, c), 2) / 2;
            const double minus = std::pow(at(q, h, i, c) - at(k, h, j, c), 2) / 2;
            z += weights[size_t(j)] / sum * plus / double(H * L);
            d += weights[size_t(j)] / sum * minus / double(H * L);
          }
        }
        for (int64_t c = 0; c < D; ++c) {
          double exact = 0, mean = 0;
          for (int64_t j = 0; j < reach; ++j) {
            exact += weights[size_t(j)] / sum * at(v, h, j, c);
            mean += at(v, h, j, c) / double(reach);
          }
          exact_square += exact * exact;
          error += std::pow(at(out, h, i, c) - exact, 2);
          uniform_error += std::pow(mean - exact, 2);
          distance += std::pow(at(out, h, i, c) - mean, 2);
        }
      }
    }
    const auto diagnose = [&](favor::FeatureMapKind map) {
      options.feature_map = map;
      return diagnose_attention(q, k, v, out, options, causal);
    };
    const AttentionDiagnostics found = diagnose(favor::FeatureMapKind::kPositive);
    EXPECT_NEAR(found.query_norm, std::sqrt(query), 1e-9);
    EXPECT_NEAR(found.key_norm, std::sqrt(key), 1e-9);
    EXPECT_NEAR(found.output_error, std::sqrt(error / exact_square), 1e-9);
    EXPECT_NEAR(found.uniform_error, std::sqrt(uniform_error / exact_square), 1e-9);
    EXPECT_NEAR(found.uniform_distance, std::sqrt(distance / exact_square), 1e-9);
    EXPECT_NEAR(*found.relative_variance, std::expm1(z) / 6, 1e-7);
    // Pairs of features share a row of the matrix.
    EXPECT_NEAR(*diagnose(favor::FeatureMapKind::kHyperbolic).relative_variance,
                (1 - std::exp(-z)) * std::expm1(z) / 6, 1e-7);
    EXPECT_NEAR(*diagnose(favor::FeatureMapKind::kTrig).relative_variance,
                std::exp(d) * std::pow(1 - std::exp(-d), 2) / 6, 1e-7);
    EXPECT_FALSE(diagnose(favor::FeatureMapKind::kRelu).relative_variance.has_value());
  }
}

TEST_F(Diagnose, CollapseIsSaidInWordsAndFlatAttentionIsNot) {
  LayerMetrics metrics;
  metrics.step = 40;
  metrics.layer = 3;
  metrics.diagnostics = {4, 5, 1e9, 0.3, 0.9, 0.7};
  const AttentionOptions attention;
  EXPECT_EQ(collapse_warning(metrics, attention), "");
  metrics.diagnostics.output_error = 1.2;
  const std::string worse = collapse_warning(metrics, attention);
  EXPECT_TRUE(
      worse.starts_with("warning: layer 3 at step 40: the random features are no better "
                        "than uniform attention: against exact attention its output is "
                        "off by 1.2, the plain mean of the values by 0.9"))
      << worse;
  metrics.diagnostics.uniform_distance = 0.05;
  EXPECT_NE(collapse_warning(metrics, attention).find("have collapsed to uniform attention"),
            std::string::npos);
  metrics.diagnostics.uniform_error = 0.05;
  EXPECT_EQ(collapse_warning(metrics, attention), "");
  metrics.diagnostics.uniform_error = 0.9;
  metrics.diagnostics.relative_variance.reset();
  EXPECT_EQ(collapse_warning(metrics, attention), "");
}

// Projections of q and k blown up: exact attention looks at single keys, features cannot follow.
TEST_F(Diagnose, SharpAttentionIsFoundAndFlatAttentionIsFollowed) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const SplitSequences data = read_fasta_splits({random_fasta(30)}, tokenizer, {0, 0, 0});
  for (const Windowing windowing : {Windowing::kCrop, Windowing::kConcat, Windowing::kPacked}) {
    TrainConfig config = tiny("", "run");
    config.data.windowing = windowing;
    config.model.attention.num_features = 64;
    LanguageModel model(config.model);
    const EvalBatches batches(data.train, tokenizer, config.batch_options());
    const auto scaled = [&](double factor) {
      const torch::NoGradGuard no_grad;
      for (auto& item : model->named_parameters()) {
        if (item.key().find("qkv.weight") != std::string::npos) {
          item.value().slice(0, 0, 2 * config.model.dim).mul_(factor);
        }
      }
      return diagnose(model, batches, 7);
    };
    const std::vector<LayerMetrics> flat = scaled(0.3), sharp = scaled(40);
    ASSERT_EQ(flat.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(flat[i].layer, int64_t(i));
      EXPECT_EQ(flat[i].step, 7);
      EXPECT_LT(flat[i].diagnostics.output_error, 0.1);
      EXPECT_EQ(collapse_warning(flat[i], config.model.attention), "");
      EXPECT_GT(sharp[i].diagnostics.uniform_error, 0.5);
      EXPECT_GT(sharp[i].diagnostics.query_norm, 10 * flat[i].diagnostics.query_norm);
      EXPECT_GT(*sharp[i].diagnostics.relative_variance, 1e6);
      EXPECT_NE(collapse_warning(sharp[i], config.model.attention), "");
    }
    EXPECT_TRUE(model->is_training());
  }
}

TEST_F(Diagnose, EvaluationAndDiagnosisChangeNothingOfTheRun) {
  const std::string data = random_fasta(120);
  const auto run = [&](const std::string& name, int64_t evaluations, int64_t diagnoses) {
    TrainConfig config = tiny(data, name);
    config.run.eval_interval = evaluations;
    config.run.eval_sets = evaluations > 0 ? "valid,train" : "valid";
    config.run.diagnostics_interval = diagnoses;
    config.run.save_interval = 0;
    config.model.attention.redraw_interval = 3;
    train(config);
    return config.run.out;
  };
  const fs::path plain = run("plain", 0, 0);
  for (const fs::path& other : {fs::path(run("both", 5, -1)), fs::path(run("layers", 0, 4))}) {
    EXPECT_TRUE(read_file(plain / "checkpoint-20" / "model.safetensors") ==
                read_file(other / "checkpoint-20" / "model.safetensors"));
    EXPECT_TRUE(read_file(plain / "checkpoint-20" / "optimizer.safetensors") ==
                read_file(other / "checkpoint-20" / "optimizer.safetensors"));
  }
  const auto layer_lines = [&](const fs::path& folder) {
    std::vector<json> lines;
    for (const json& line : timeless_metrics(folder)) {
      if (line.contains("layer")) lines.push_back(line);
    }
    return lines;
  };
  EXPECT_TRUE(layer_lines(plain).empty());
  const std::vector<json> lines = layer_lines(folder_ / "layers");
  ASSERT_EQ(lines.size(), 10u);  // 5 times 2 layers
  EXPECT_EQ(lines[3]["step"], 8);
  EXPECT_EQ(lines[3]["layer"], 1);
  for (const char* key :
       {"query_norm", "key_norm", "relative_variance", "output_error", "uniform_error"}) {
    EXPECT_GT(lines[3][key].get<double>(), 0) << key;
  }
  std::string events;
  for (const auto& entry : fs::directory_iterator(folder_ / "layers" / "tensorboard")) {
    events += read_file(entry.path());
  }
  EXPECT_NE(events.find("layer_1/output_error"), std::string::npos);
  EXPECT_EQ(layer_lines(folder_ / "both").size(), 8u);
}

TEST_F(Diagnose, ExactAttentionHasNoLines) {
  TrainConfig config = tiny(random_fasta(60), "exact");
  config.model.attention.method = AttentionMethod::kExact;
  config.run.max_steps = 5;
  train(config);
  for (const json& line : timeless_metrics(config.run.out)) EXPECT_FALSE(line.contains("layer"));
}

}  // namespace
}  // namespace performer
