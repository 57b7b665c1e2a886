// SPDX-License-Identifier: Apache-2.0
// How near random-feature attention comes to exact softmax attention: the error of its output for
// every feature map and matrix, beside what the plain mean of the values and exact attention to
// near keys alone achieve; and the variance of the kernel estimate beside its closed form. Prints
// Markdown tables and writes every figure as a JSON line.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/variance.h"
#include "favor/exact.h"
#include "favor/favor.h"
#include "favor/fitted_map.h"

namespace favor::bench {
namespace {

constexpr int64_t D = 64;

struct Options {
  int64_t L = 1024;
  int64_t draws = 5;
  int64_t variance_draws = 2000;
  std::string json;
};

constexpr double kSpreads[] = {0.25, 0.5, 1.0};
constexpr int64_t kFeatures[] = {64, 128, 256, 512, 1024};
constexpr int64_t kWindows[] = {0, 64, 128};
constexpr ProjectionKind kMatrices[] = {ProjectionKind::kIid, ProjectionKind::kOrthogonal,
                                        ProjectionKind::kHadamard, ProjectionKind::kGivens,
                                        ProjectionKind::kSimplex};

/// A feature map, and how long the rows of its matrix are.
struct Estimator {
  FeatureMapKind map;
  RowNorm norm;

  std::string name() const {
    return to_string(map) + (norm == RowNorm::kSqrtD ? " (rows of norm sqrt(D))" : "");
  }
};

std::vector<Estimator> softmax_estimators() {
  return {{FeatureMapKind::kPositive, RowNorm::kChi},
          {FeatureMapKind::kPositive, RowNorm::kSqrtD},
          {FeatureMapKind::kHyperbolic, RowNorm::kChi},
          {FeatureMapKind::kOptimalPositive, RowNorm::kChi},
          {FeatureMapKind::kFavorSharpDiagonal, RowNorm::kChi},
          {FeatureMapKind::kFavorSharp, RowNorm::kChi},
          {FeatureMapKind::kTrig, RowNorm::kChi}};
}

std::vector<float> normal(uint64_t seed, int64_t count, double spread) {
  RandomStream rng(seed, 0);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(spread * rng.normal());
  return values;
}

/// One set of queries, keys and values, seen by every draw of a matrix as a head of its own.
struct Inputs {
  int64_t L;
  std::vector<float> q, k, v, exact, mean;

  Inputs(int64_t length, double spread)
      : L(length),
        q(normal(1, L * D, spread)),
        k(normal(2, L * D, spread)),
        v(normal(3, L * D, 1)),
        exact(attend_to_near(0)),
        mean(L * D) {
    std::vector<double> sum(D);
    for (int64_t i = 0; i < L * D; ++i) sum[i % D] += v[i];
    for (int64_t i = 0; i < L * D; ++i) mean[i] = static_cast<float>(sum[i % D] / L);
  }

  /// Exact attention to the keys of the window only; 0: to all.
  std::vector<float> attend_to_near(int64_t window) const {
    std::vector<float> out(L * D);
    ExactParams<float> params;
    params.window = window;
    exact_forward<float>(params, view(q, 1), view(k, 1), view(v, 1),
                         contiguous_view(out.data(), 1, 1, L, D));
    return out;
  }

  View4<const float> view(const std::vector<float>& x, int64_t heads) const {
    return {x.data(), {1, heads, L, D}, {0, 0, D, 1}};
  }
};

/// |a - b| / |exact|, over all elements.
double distance(const std::vector<float>& a, const float* b, const std::vector<float>& exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(exact[i], 2);
  }
  return std::sqrt(error / size);
}

struct Errors {
  double exact = 0;  ///< against exact attention
  double mean = 0;   ///< against the plain mean of the values
};

/// Mean over draws of the matrix.
Errors measure(const Inputs& inputs, const Estimator& estimator, ProjectionKind matrix, int64_t M,
               int64_t window, int64_t draws) {
  std::vector<float> w;
  for (int64_t draw = 0; draw < draws; ++draw) {
    ProjectionSpec spec;
    spec.kind = matrix;
    spec.row_norm = estimator.norm;
    spec.num_features = num_projection_rows(estimator.map, M);
    spec.head_dim = D;
    spec.seed = 1000 + draw;
    const std::vector<float> rows = draw_projection(spec);
    w.insert(w.end(), rows.begin(), rows.end());
  }
  AttentionParams<float> params;
  params.feature_map = estimator.map;
  params.projection = w.data();
  params.num_projections = draws;
  params.num_features = M;
  params.window = window;
  std::vector<float> out(draws * inputs.L * D);
  bidirectional_forward<float>(params, inputs.view(inputs.q, draws), inputs.view(inputs.k, draws),
                               inputs.view(inputs.v, draws),
                               contiguous_view(out.data(), 1, draws, inputs.L, D));
  Errors errors;
  for (int64_t draw = 0; draw < draws; ++draw) {
    const float* head = out.data() + draw * inputs.L * D;
    errors.exact += distance(inputs.exact, head, inputs.exact) / static_cast<double>(draws);
    errors.mean += distance(inputs.mean, head, inputs.exact) / static_cast<double>(draws);
  }
  return errors;
}

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {
    if (options.json.empty()) return;
    json_.open(options.json);
    if (!json_) throw std::runtime_error("cannot write " + options.json);
  }

  void run() {
    for (const double spread : kSpreads) print_errors(spread);
    print_variances();
    json_.flush();
    if (!options_.json.empty() && !json_) throw std::runtime_error("cannot write " + options_.json);
  }

 private:
  void note(const nlohmann::ordered_json& line) {
    if (json_.is_open()) json_ << line.dump() << '\n';
  }

  void print_errors(double spread) {
    const Inputs inputs(options_.L, spread);
    std::printf("\n### q and k of standard deviation %g\n", spread);
    std::printf("\nThe plain mean of the values errs by %.3f.\n",
                distance(inputs.mean, inputs.exact.data(), inputs.exact));
    for (const int64_t window : kWindows) {
      if (window == 0) {
        std::printf("\nFeatures for all keys.\n");
      } else {
        const double dropped =
            distance(inputs.attend_to_near(window), inputs.exact.data(), inputs.exact);
        std::printf("\nExact window of %lld, features for the far keys. Far keys dropped: %.3f.\n",
                    static_cast<long long>(window), dropped);
        note({{"kind", "dropped"}, {"spread", spread}, {"window", window}, {"error", dropped}});
      }
      std::printf("\n| map | matrix |");
      for (const int64_t M : kFeatures) std::printf(" M = %lld |", static_cast<long long>(M));
      std::printf("\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
      for (const Estimator& estimator : softmax_estimators()) {
        if (window > 0 && estimator.map == FeatureMapKind::kTrig) continue;
        for (const ProjectionKind matrix : kMatrices) {
          print_row(inputs, estimator, matrix, spread, window);
        }
      }
    }
  }

  void print_row(const Inputs& inputs, const Estimator& estimator, ProjectionKind matrix,
                 double spread, int64_t window) {
    std::printf("| %s | %s |", estimator.name().c_str(), to_string(matrix).c_str());
    for (const int64_t M : kFeatures) {
      const Errors errors = measure(inputs, estimator, matrix, M, window, options_.draws);
      std::printf(" %.3g (%.2g) |", errors.exact, errors.mean);
      note({{"kind", "error"},
            {"map", to_string(estimator.map)},
            {"row_norm", to_string(estimator.norm)},
            {"matrix", to_string(matrix)},
            {"M", M},
            {"spread", spread},
            {"window", window},
            {"error", errors.exact},
            {"distance_to_mean", errors.mean}});
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  /// Relative variance of single kernel estimates, averaged over pairs.
  void print_variances() {
    std::printf("\n### Relative variance of the kernel estimate, M = %lld\n",
                static_cast<long long>(D));
    std::printf("\n| standard deviation | map | matrix | measured | closed form |\n");
    std::printf("| ---: | --- | --- | ---: | ---: |\n");
    for (const double spread : {0.25, 0.5}) {
      for (const Estimator& estimator : softmax_estimators()) {
        if (estimator.norm != RowNorm::kChi) continue;
        for (const ProjectionKind matrix : kMatrices) {
          print_variance(spread, estimator.map, matrix);
        }
      }
    }
  }

  void print_variance(double spread, FeatureMapKind map, ProjectionKind matrix) {
    constexpr int64_t kPairs = 16, M = D;
    const double root = std::pow(static_cast<double>(D), -0.25);
    const std::vector<float> q = normal(4, kPairs * D, spread), k = normal(5, kPairs * D, spread);
    std::vector<double> x(q.begin(), q.end()), y(k.begin(), k.end());
    Moments moments(D, map == FeatureMapKind::kFavorSharp);
    for (double& value : x) value *= root;
    for (double& value : y) value *= root;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      moments.add_query(&x[pair * D], 1.0);
      moments.add_key(&y[pair * D], 1.0);
    }
    const std::vector<double> fitted = is_fitted(map) ? moments.fit(map) : std::vector<double>();
    double closed = 0;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const std::optional<double> exact =
          relative_variance(map, matrix, M, fitted, std::span(x).subspan(pair * D, D),
                            std::span(y).subspan(pair * D, D));
      if (!exact) return;
      closed += *exact / kPairs;
    }
    double squares = 0;
    for (int64_t draw = 0; draw < options_.variance_draws; ++draw) {
      ProjectionSpec spec;
      spec.kind = matrix;
      spec.num_features = num_projection_rows(map, M);
      spec.head_dim = D;
      spec.seed = 50000 + draw;
      const std::vector<float> w = draw_projection(spec);
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        squares += std::pow(relative_error(map, w, fitted, &x[pair * D], &y[pair * D]), 2);
      }
    }
    const double measured = squares / static_cast<double>(kPairs * options_.variance_draws);
    std::printf("| %g | %s | %s | %.4g | %.4g |\n", spread, to_string(map).c_str(),
                to_string(matrix).c_str(), measured, closed);
    std::fflush(stdout);
    note({{"kind", "variance"},
          {"map", to_string(map)},
          {"matrix", to_string(matrix)},
          {"M", M},
          {"spread", spread},
          {"measured", measured},
          {"closed_form", closed}});
  }

  /// phi(q).phi(k) / exp(q.k) - 1.
  static double relative_error(FeatureMapKind map, const std::vector<float>& w,
                               const std::vector<double>& fitted, const double* q,
                               const double* k) {
    double dot = 0;
    for (int64_t i = 0; i < D; ++i) dot += q[i] * k[i];
    double sum = 0;
    if (map == FeatureMapKind::kTrig) {
      double squares = 0;
      const auto rows = static_cast<int64_t>(w.size()) / D;
      for (int64_t i = 0; i < D; ++i) squares += (q[i] * q[i] + k[i] * k[i]) / 2;
      for (int64_t r = 0; r < rows; ++r) {
        double angle = 0;
        for (int64_t i = 0; i < D; ++i) angle += w[r * D + i] * (q[i] - k[i]);
        sum += std::cos(angle) / static_cast<double>(rows);
      }
      return sum * std::exp(squares - dot) - 1;
    }
    const LogLinearMap estimate = make_log_linear_map(map, w.data(), D, D, fitted);
    double norms = 0;
    for (int64_t i = 0; i < D; ++i) {
      norms += estimate.query_norm[i] * q[i] * q[i] / 2 + estimate.key_norm[i] * k[i] * k[i] / 2;
    }
    for (int64_t f = 0; f < D; ++f) {
      double u = estimate.query_constant[f] - norms - dot;
      for (int64_t i = 0; i < D; ++i) {
        u += estimate.query_rows[f * D + i] * q[i] + estimate.key_rows[f * D + i] * k[i];
      }
      sum += std::exp(u);
    }
    return sum - 1;
  }

  Options options_;
  std::ofstream json_;
};

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app{"Error of random-feature attention against exact softmax attention"};
  app.add_option("--length", options.L, "tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--draws", options.draws, "matrices per figure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--variance-draws", options.variance_draws, "matrices per variance")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "also write every figure to this file as JSON lines");
  CLI11_PARSE(app, argc, argv);
  Report(options).run();
  return 0;
}

}  // namespace
}  // namespace favor::bench

int main(int argc, char** argv) {
  try {
    return favor::bench::run_main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "favor_accuracy: error: " << error.what() << '\n';
    return 1;
  }
}
