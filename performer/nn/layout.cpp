// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/layout.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "favor/check.h"

namespace performer {

using torch::Tensor;

void BatchLayout::check(const char* op, int64_t B, int64_t L) const {
  FAVOR_CHECK(!key_padding_mask.defined() ||
                  (key_padding_mask.scalar_type() == torch::kBool && key_padding_mask.dim() == 2 &&
                   key_padding_mask.size(0) == B && key_padding_mask.size(1) == L),
              op, ": key_padding_mask is ", key_padding_mask.scalar_type(), " of shape ",
              key_padding_mask.sizes(), ", expected bool of shape [", B, ", ", L,
              "] (true = ignore this key)");
  if (!is_packed()) return;
  FAVOR_CHECK(
      (cu_seqlens.scalar_type() == torch::kInt || cu_seqlens.scalar_type() == torch::kLong) &&
          cu_seqlens.dim() == 1 && cu_seqlens.size(0) >= 2,
      op, ": cu_seqlens is ", cu_seqlens.scalar_type(), " of shape ", cu_seqlens.sizes(),
      ", expected int32 or int64 of shape [N + 1] with N >= 1");
  const std::vector<int64_t> ends = offsets(L);
  FAVOR_CHECK(ends.front() == 0 && ends.back() == L, op, ": cu_seqlens goes from ", ends.front(),
              " to ", ends.back(), ", expected 0 to ", L, " (tokens of a row)");
  const auto fall = std::adjacent_find(ends.begin(), ends.end(), std::greater<>());
  FAVOR_CHECK(fall == ends.end(), op, ": cu_seqlens falls from ", *fall, " to ", *(fall + 1),
              ", expected ascending offsets");
}

std::vector<int64_t> BatchLayout::offsets(int64_t L) const {
  if (!is_packed()) return {0, L};
  const Tensor wide = cu_seqlens.to(torch::kLong).contiguous();
  const auto* values = wide.const_data_ptr<int64_t>();
  return {values, values + wide.numel()};
}

SliceLayout cut(const BatchLayout& layout, int64_t L, int64_t begin, int64_t end) {
  SliceLayout slice;
  if (layout.key_padding_mask.defined()) {
    slice.key_padding_mask = layout.key_padding_mask.slice(1, begin, end);
  }
  const std::vector<int64_t> offsets = layout.offsets(L);
  slice.offsets = {0};
  slice.continues = std::find(offsets.begin(), offsets.end(), begin) == offsets.end();
  for (const int64_t offset : offsets) {
    if (offset > begin && offset < end && offset - begin != slice.offsets.back()) {
      slice.offsets.push_back(offset - begin);
    }
  }
  slice.offsets.push_back(end - begin);
  slice.positions = torch::arange(begin, end, torch::kLong);
  auto* position = slice.positions.mutable_data_ptr<int64_t>();
  for (int64_t t = begin; t < end; ++t) {
    // The last offset at or before a token is where its sequence begins.
    const auto next = std::upper_bound(offsets.begin(), offsets.end(), t);
    position[t - begin] -= *(next - 1);
  }
  return slice;
}

Tensor packed_positions(const std::vector<int64_t>& offsets) {
  Tensor positions = torch::empty({offsets.back()}, torch::kLong);
  auto* values = positions.mutable_data_ptr<int64_t>();
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    std::iota(values + offsets[n], values + offsets[n + 1], int64_t{0});
  }
  return positions;
}

}  // namespace performer
