// SPDX-License-Identifier: Apache-2.0
// The list of problems to time: reading it and naming its entries.
#ifndef BENCH_PROBLEMS_H_
#define BENCH_PROBLEMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "favor/feature_map.h"
#include "favor/rows.h"

namespace favor::bench {

enum class Op { kBidirectional, kCausal, kDecodeStep };
std::string to_string(Op op);

enum class Pass { kForward, kBackward };
std::string to_string(Pass pass);

/// A feature map with or without a random matrix, or exact attention.
struct Map {
  FeatureMapKind kind = FeatureMapKind::kPositive;
  bool projected = true;
  bool structured = false;  ///< a Hadamard matrix in compact form
  bool exact = false;       ///< no features at all
};
/// A word of the list, as positive, relu-hadamard, relu-identity or exact.
std::string to_string(Map map);

/// float32 | bfloat16 | float16
std::string to_string(ElementType type);

/// Tokens before those of a decode_step, of which a later position has copies.
inline constexpr int64_t kPrefixTokens = 500;

/// One line of the list: sizes, and what to run at these sizes.
struct Shape {
  std::string name;
  int64_t B = 1, H = 8, L = 1024, S = 0, D = 64, E = 64, M = 256;
  int64_t window = 0, sinks = 0;
  int64_t period = 0;    ///< tokens after which the inputs repeat; 0: they do not
  int64_t position = 0;  ///< tokens that a decode_step's state has seen before its first
  double norm = 1;
  std::vector<Op> ops;
  std::vector<Map> maps;
  std::vector<int> threads{1};
  ElementType dtype = ElementType::kFloat32;

  int64_t prefix() const { return position == 0 ? 0 : kPrefixTokens; }
  int64_t features(Map map) const { return map.projected ? M : D; }
};

/// Reads a list in the format that bench/shapes.txt describes; `all_threads` is what the word "all"
/// stands for. Throws favor::Error naming file and line.
std::vector<Shape> read_shapes(const std::string& path, int all_threads);

/// "causal/backward/positive/L4096/threads1": what --filter is matched against.
std::string label(const Shape& shape, Op op, Pass pass, Map map, int threads);

}  // namespace favor::bench

#endif  // BENCH_PROBLEMS_H_
