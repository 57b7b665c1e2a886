// SPDX-License-Identifier: Apache-2.0
#include "performer/ops/compact_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "favor/check.h"
#include "performer/ops/parameters.h"

namespace performer::ops {
namespace {

constexpr int64_t kFirstWord = 2;  // behind the scale and D

// The empty matrix of this shape.
favor::StructuredProjection shaped(int64_t rows, int64_t head_dim) {
  favor::StructuredProjection matrix;
  matrix.num_features = rows;
  matrix.head_dim = head_dim;
  matrix.block_rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(head_dim)));
  return matrix;
}

int64_t words_of_block(const favor::StructuredProjection& matrix) {
  return favor::StructuredProjection::kRounds * matrix.words();
}

}  // namespace

int64_t compact_columns(int64_t head_dim) {
  FAVOR_CHECK(head_dim >= 1, "compact_columns: head_dim is ", head_dim, ", expected 1 or more");
  return kFirstWord + words_of_block(shaped(1, head_dim));
}

at::Tensor compact_rows(const favor::StructuredProjection& matrix) {
  const int64_t R = matrix.num_features, words = words_of_block(matrix);
  at::Tensor rows = at::empty({R, kFirstWord + words}, at::kInt);
  auto* to = rows.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < R; ++i, to += kFirstWord + words) {
    to[0] = std::bit_cast<int32_t>(matrix.row_scales[static_cast<size_t>(i)]);
    to[1] = static_cast<int32_t>(matrix.head_dim);
    const uint32_t* signs = matrix.signs.data() + i / matrix.block_rows * words;
    std::transform(signs, signs + words, to + kFirstWord,
                   [](uint32_t word) { return std::bit_cast<int32_t>(word); });
  }
  return rows;
}

favor::StructuredProjection structured_of(const char* op, const at::Tensor& rows, int64_t D) {
  const int64_t R = rows.size(0), columns = rows.size(1);
  FAVOR_CHECK(columns == compact_columns(D), op, ": projection is Int of shape ", shape_of(rows),
              ", expected ", compact_columns(D),
              " columns (the compact form of a matrix of head dim ", D, ")");
  favor::StructuredProjection matrix = shaped(R, D);
  const at::Tensor flat = rows.contiguous();
  const auto* from = flat.const_data_ptr<int32_t>();
  const int32_t* block = from;
  for (int64_t i = 0; i < R; ++i, from += columns) {
    const bool starts_block = i % matrix.block_rows == 0;
    if (starts_block) block = from;
    FAVOR_CHECK(from[1] == D && std::equal(block + kFirstWord, block + columns, from + kFirstWord),
                op, ": projection has in row ", i, " a row of head dim ", from[1],
                from[1] == D ? " with other signs than the row before" : "",
                ", expected whole blocks of head dim ", D, " as draw_projection gives them");
    matrix.row_scales.push_back(std::bit_cast<float>(from[0]));
    if (!starts_block) continue;
    std::transform(block + kFirstWord, block + columns, std::back_inserter(matrix.signs),
                   [](int32_t word) { return std::bit_cast<uint32_t>(word); });
  }
  return matrix;
}

}  // namespace performer::ops
