// SPDX-License-Identifier: Apache-2.0
// Attention of one layer by one method, on random q, k and v without the linear layers around it:
// runs once per line of standard input and prints the seconds of a forward pass, and of a forward
// and a backward pass. bench/methods/run.py measures it in turn with other packages.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "favor/check.h"
#include "performer/nn/attention_core.h"
#include "performer/train/freed_memory.h"

namespace performer {
namespace {

using torch::Tensor;

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Seconds {
  double wall = 0, cpu = 0;
};

template <class Run>
Seconds time_of(const Run& run) {
  const auto start = std::chrono::steady_clock::now();
  const double before = cpu_seconds();
  run();
  const double after = cpu_seconds();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          after - before};
}

int run(int argc, char** argv) {
  AttentionCoreOptions options;
  AttentionOptions& attention = options.attention;
  std::string method = "favor";
  int64_t length = 1024, batch = 1;
  int threads = 1;
  options.num_heads = 8;
  options.head_dim = 64;
  options.causal = false;
  CLI::App app("Attention of one layer on random tensors, once per line of standard input");
  app.option_defaults()->always_capture_default();
  app.add_option("--attention", method, "method");
  app.add_option("--length", length, "L");
  app.add_option("--batch", batch, "B");
  app.add_option("--num-heads", options.num_heads, "H");
  app.add_option("--head-dim", options.head_dim, "D");
  app.add_flag("--causal", options.causal, "causal form");
  app.add_option("-t,--threads", threads, "threads");
  app.add_option("--num-features", attention.num_features);
  app.add_option("--window", attention.window);
  app.add_option("--sinks", attention.sinks);
  app.add_option("--local-window", attention.local_window);
  app.add_option("--mixed-keys", attention.mixed_keys);
  app.add_option("--hash-rounds", attention.hash_rounds);
  app.add_option("--hash-buckets", attention.hash_buckets);
  app.add_option("--bucket-block", attention.bucket_block);
  app.add_option("--num-clusters", attention.num_clusters);
  app.add_option("--cluster-iterations", attention.cluster_iterations);
  app.add_option("--cluster-top", attention.cluster_top);
  CLI11_PARSE(app, argc, argv);
  attention.method = attention_method_from_string(method);
  FAVOR_CHECK(
      length >= 1 && batch >= 1 && options.num_heads >= 1 && options.head_dim >= 1 && threads >= 1,
      "method_bench: a size is below 1, expected 1 or more");
  options.max_length = length;
  at::set_num_threads(threads);
  torch::manual_seed(0);
  keep_freed_memory();  // as `performer train` does

  torch::nn::Module owner;
  const auto core = make_attention_core(options, owner);
  const auto draw = [&] {
    // Heads inside tokens, as the layer's product has them.
    return torch::randn({batch, length, options.num_heads, options.head_dim}).transpose(1, 2);
  };
  const Tensor q = draw().requires_grad_(), k = draw().requires_grad_();
  const Tensor v = draw().requires_grad_(), dout = draw();
  const auto forward = [&] {
    const torch::NoGradGuard no_grad;
    core->forward(q, k, v, {});
  };
  const auto both = [&] {
    std::vector<Tensor> inputs = {q, k, v};
    for (const auto& item : owner.named_parameters()) inputs.push_back(item.value());
    torch::autograd::grad({core->forward(q, k, v, {})}, inputs, {dout}, {}, false,
                          /*allow_unused=*/true);
  };
  forward();
  both();
  std::cout << nlohmann::json{{"ready", true}}.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const Seconds once = time_of(forward), twice = time_of(both);
    std::cout << nlohmann::json{{"forward_wall_s", once.wall},
                                {"forward_cpu_s", once.cpu},
                                {"both_wall_s", twice.wall},
                                {"both_cpu_s", twice.cpu}}
                     .dump()
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace performer

int main(int argc, char** argv) {
  try {
    return performer::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "method_bench: error: " << error.what() << "\n";
    return 1;
  }
}
