#include <cstdio>
#include <vector>

#include "favor/favor.h"

int main() {
  const int64_t B = 1, H = 2, L = 1000, D = 64, M = 256;
  std::vector<float> q(B * H * L * D, 0.1f), k = q, v = q, out(q.size());
  const std::vector<float> w = favor::draw_projection({.num_features = M, .head_dim = D});
  favor::AttentionParams<float> params;
  params.projection = w.data();
  params.num_features = M;
  const auto view = [&](auto& x) { return favor::contiguous_view(x.data(), B, H, L, D); };
  favor::causal_forward<float>(params, view(q), view(k), view(v), view(out));
  std::printf("%.3f\n", out.back());
}
