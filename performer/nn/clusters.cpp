// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/clusters.h"

#include <torch/torch.h>

#include <vector>

#include "favor/kmeans.h"
#include "performer/ops/parameters.h"

namespace performer {
namespace {

using torch::Tensor;

// k-means by the kernels: assignment and nearest [B, H, L], clusters counted from 0.
template <class T>
void run_kmeans(const favor::KMeansParams& params, const Tensor& x, const Tensor& queries,
                Tensor& assignment, Tensor& nearest) {
  const Tensor rows = ops::rows_contiguous(x);
  const Tensor query_rows = queries.defined() ? ops::rows_contiguous(queries) : Tensor();
  favor::kmeans<T>(params, ops::view_of<const T>(rows), assignment.mutable_data_ptr<int64_t>(),
                   queries.defined() ? ops::view_of<const T>(query_rows) : favor::View4<const T>(),
                   queries.defined() ? nearest.mutable_data_ptr<int64_t>() : nullptr);
}

}  // namespace

ClusteredTokens cluster_tokens(const Tensor& x, const BatchLayout& layout,
                               const KMeansOptions& options, const Tensor& queries) {
  const torch::NoGradGuard no_grad;
  const int64_t B = x.size(0), H = x.size(1), L = x.size(2), C = options.num_clusters;
  const std::vector<int64_t> offsets = layout.offsets(L);
  const int64_t N = std::ssize(offsets) - 1;
  favor::KMeansParams params;
  params.num_clusters = C;
  params.iterations = options.iterations;
  params.cu_seqlens = offsets;
  Tensor mask;
  if (layout.key_padding_mask.defined()) {
    mask = layout.key_padding_mask.contiguous();
    params.key_padding_mask = reinterpret_cast<const uint8_t*>(mask.const_data_ptr<bool>());
  }
  ClusteredTokens result;
  result.num_groups = B * H * N * C;
  result.assignment = torch::empty({B, H, L}, torch::kLong);
  result.nearest = torch::empty({B, H, queries.defined() ? L : 0}, torch::kLong);
  const Tensor of = queries.defined() ? queries.to(x.scalar_type()) : Tensor();
  ops::for_type_of(
      x, [&]<class T>(T) { run_kmeans<T>(params, x, of, result.assignment, result.nearest); });
  Tensor first = torch::empty({L}, torch::kLong);
  for (int64_t n = 0; n < N; ++n) {
    first.narrow(0, offsets[n], offsets[n + 1] - offsets[n]).fill_(n * C);
  }
  first = first + torch::arange(B * H, torch::kLong).mul(N * C).view({B, H, 1});
  result.assignment =
      torch::where(result.assignment < 0, result.assignment, result.assignment + first);
  if (queries.defined()) result.nearest += first;
  return result;
}

RowGroups group_rows(const Tensor& groups, int64_t num_groups) {
  const Tensor flat = groups.contiguous().view({-1});
  const auto* group = flat.const_data_ptr<int64_t>();
  const int64_t rows = flat.numel();
  RowGroups result;
  result.offsets = torch::zeros({num_groups + 1}, torch::kLong);
  auto* offsets = result.offsets.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    if (group[i] >= 0) ++offsets[group[i] + 1];
  }
  for (int64_t g = 0; g < num_groups; ++g) offsets[g + 1] += offsets[g];
  std::vector<int64_t> next(offsets, offsets + num_groups);
  result.order = torch::empty({offsets[num_groups]}, torch::kLong);
  auto* order = result.order.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    if (group[i] >= 0) order[next[group[i]]++] = i;
  }
  return result;
}

Tensor ungroup_rows(const Tensor& rows, const RowGroups& groups, torch::IntArrayRef shape) {
  const Tensor blank = torch::zeros(shape, rows.options());
  return blank.view({-1, rows.size(-1)}).index_copy(0, groups.order, rows).view(shape);
}

}  // namespace performer
