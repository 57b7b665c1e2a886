// SPDX-License-Identifier: Apache-2.0
// One problem of the list in memory: inputs and outputs of a kernel, the call itself, and what the
// reference says about its results.
#ifndef BENCH_WORKLOAD_H_
#define BENCH_WORKLOAD_H_

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "bench/problems.h"
#include "favor/attention.h"
#include "favor/exact.h"
#include "favor/testing.h"

namespace favor::bench {

/// A contiguous [B, H, L, D] tensor at an aligned address, as tensor libraries allocate it.
struct Tensor {
  Tensor() = default;
  Tensor(int64_t B, int64_t H, int64_t L, int64_t D);

  View4<float> view() const { return contiguous_view(data.get(), B, H, L, D); }
  int64_t size() const { return B * H * L * D; }
  void fill(float value) const;
  /// Rows [first, L) of the last head.
  std::vector<float> last_head(int64_t first = 0) const;
  bool is_finite() const;
  uint64_t hash() const;

  hwy::AlignedFreeUniquePtr<float[]> data;
  int64_t B = 0, H = 0, L = 0, D = 0;
};

/// Random inputs of a shape, shared by every operation that runs on it.
struct Inputs {
  explicit Inputs(const Shape& shape);

  /// The last head of the last item as a problem of its own, for the reference. Of inputs that
  /// repeat, a problem whose last period has the same results: bidirectional one period, since
  /// copies of a key share its weight; causal two, where the first one's keys stand for all their
  /// copies before the last period, and its queries take no part. Steps at a later position come
  /// after a prefix whose keys stand for all their copies.
  test::Problem last_head(Op op, Map map) const;

  Shape shape;
  Tensor q, k, v, dout;
  Tensor prefix_k, prefix_v;  ///< tokens before those of steps at a later position
  std::vector<float> projection;
  StructuredProjection structured;
};

/// Floating-point operations of one call: two per multiply-add of the products between tokens,
/// features and values, 8 B H L M D forward if L = S and D = E, and twice as many backward.
/// decode_step is counted for one token. Products with an absent projection are not counted, those
/// with a structured one as if it were dense. Pairs scored exactly count 2 (D + E) forward and
/// 2 (3 D + 2 E) backward.
double num_flops(const Shape& shape, Op op, Pass pass, Map map);

/// A kernel with its buffers. What a call needs beyond them is scratch memory of its own.
class Workload {
 public:
  Workload(const Inputs& inputs, Op op, Map map);

  /// Outputs of the pass become NaN; decoding starts again from its first position.
  void prepare(Pass pass);

  /// The timed call. A backward pass uses what the last forward pass left; decode_step runs over
  /// all L tokens.
  void run(Pass pass);

  /// Error ratio of the last head's results, of its last period if the inputs repeat (at most 1 is
  /// right), after `perturbation` was added to one of their elements; infinite if any head has a
  /// result that is not finite.
  double error_ratio(Pass pass, const test::Judge& judge, float perturbation);

  /// Changes with any bit of the results.
  uint64_t hash(Pass pass);

 private:
  /// q, k, v, dout, out, dq, dk and dv in 16 bits, for calls on these types; else empty.
  struct Halves {
    std::vector<uint16_t> q, k, v, dout, out, dq, dk, dv;
  };
  template <class T>
  void run_halves(Pass pass);
  /// The state at the first position of steps.
  DecodeState first_state() const;
  /// Brings results of 16 bits to the float tensors.
  void collect();

  const Inputs& inputs_;
  Op op_;
  AttentionParams<float> params_;
  ExactParams<float> exact_params_;
  bool exact_ = false;
  Tensor out_, dq_, dk_, dv_, normalizer_, state_;
  std::vector<uint8_t> chunk_starts_;
  Saved<float> saved_;
  Halves halves_;
  /// Inputs of decoding: [B, L, H, D].
  struct Steps {
    Tensor q, k, v;
  };
  Steps steps_;
  DecodeState first_state_, decode_state_;
};

}  // namespace favor::bench

#endif  // BENCH_WORKLOAD_H_
