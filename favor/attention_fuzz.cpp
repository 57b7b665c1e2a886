// SPDX-License-Identifier: Apache-2.0
// Fuzzer of the attention calls, for libFuzzer under the address and undefined-behaviour
// sanitizers: bytes become sizes, strides, masks and options. A right call must stay inside its
// buffers and give finite results; a wrong one must be refused before it touches memory.
#include <cstdlib>
#include <string>
#include <vector>

#include "favor/plan.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

/// Numbers from the fuzzer's bytes; zeros when they run out.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint64_t below(uint64_t bound) {
    uint64_t value = next();
    if (bound > 256) value = value << 8 | next();
    return bound == 0 ? 0 : value % bound;
  }

  /// Small numbers, and now and then any 64 bits.
  int64_t integer() {
    const uint64_t kind = below(4);
    if (kind < 3) return static_cast<int64_t>(below(16)) - 4;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | next();
    return static_cast<int64_t>(value);
  }

 private:
  uint64_t next() { return position_ < size_ ? data_[position_++] : 0; }

  const uint8_t* data_;
  size_t size_, position_ = 0;
};

void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

/// A right call.
void run_right_call(ByteSource& source) {
  test::CaseSizes sizes;
  sizes.lengths = {0, 1, 2, 5, 31, 32, 33, 64, 65, 70};
  sizes.dims = {1, 2, 3, 7, 8, 15, 16, 17, 33};
  sizes.features = {1, 2, 7, 16, 17, 33, 40};
  test::Case c = test::random_case(source, source.below(2) == 0, sizes);
  c.seed = source.below(256);
  const test::Results<float> results = test::run_kernel(test::make_problem(c));
  if (!results.guards_intact) fail(c.name() + ": memory outside a buffer was written");
  // Denominators of maps of both signs may vanish.
  const bool bounded = is_log_linear(c.feature_map) || c.feature_map == FeatureMapKind::kRelu;
  if (bounded && c.renormalize && !test::all_finite(results.out)) {
    fail(c.name() + ": an output is not finite");
  }
}

/// A call with some of its sizes, strides, offsets and options replaced, never so that a legal
/// call could leave the buffers: sizes only shrink, strides become 0.
void run_wrong_call(ByteSource& source) {
  constexpr int64_t kSize = 6;
  std::vector<float> memory(kSize * kSize * kSize * kSize, 0.5f), zeros = memory;
  std::vector<float> outputs[4] = {zeros, zeros, zeros, zeros};
  std::vector<uint8_t> chunk_starts(kSize * kSize * kSize), mask(kSize * kSize);
  std::vector<float> normalizer(kSize * kSize * kSize), parameters(kSize * (kSize + kSize * kSize));
  const auto view = [&](float* data) {
    View4<float> result = contiguous_view(data, 2, 2, kSize, 4);
    const uint64_t changes = source.below(3);
    for (uint64_t i = 0; i < changes; ++i) {
      const int64_t value = source.integer();
      const size_t dim = source.below(4);
      if (source.below(2) == 0) {
        result.sizes[dim] = std::min(value, result.sizes[dim]);
      } else {
        result.strides[dim] = value == 1 ? 0 : result.strides[dim];
      }
    }
    if (source.below(16) == 0) result.data = nullptr;
    return result;
  };
  AttentionParams<float> params;
  params.feature_map = static_cast<FeatureMapKind>(
      source.below(static_cast<uint64_t>(FeatureMapKind::kIdentity) + 1));
  params.projection = source.below(8) == 0 ? nullptr : memory.data();
  params.num_features = std::min<int64_t>(source.integer(), 8);
  params.num_projections = std::min<int64_t>(source.integer(), 2);
  if (source.below(2) == 0) params.scale = static_cast<double>(source.integer());
  if (source.below(2) == 0) params.feature_eps = static_cast<double>(source.integer());
  if (source.below(4) == 0) params.compatibility = Compatibility::kOfficial;
  params.renormalize = source.below(4) != 0;
  if (source.below(4) == 0) params.map_parameters = parameters.data();
  params.num_map_parameter_sets = std::min<int64_t>(source.integer(), 2);
  if (source.below(2) == 0) params.key_padding_mask = mask.data();
  if (source.below(2) == 0) params.key_log_weight = zeros.data();
  params.num_key_log_weights = std::min<int64_t>(source.integer(), 2);
  params.window = source.below(2) == 0 ? source.integer() : 0;
  params.sinks = source.below(2) == 0 ? source.integer() : 0;
  std::vector<int64_t> offsets_q, offsets_k;
  if (source.below(2) == 0) {
    const uint64_t count = source.below(5);
    for (uint64_t i = 0; i < count; ++i) {
      offsets_q.push_back(source.integer());
      offsets_k.push_back(source.below(2) == 0 ? offsets_q.back() : source.integer());
    }
  }
  params.cu_seqlens_q = offsets_q;
  params.cu_seqlens_k = offsets_k;
  const View4<const float> q = view(memory.data()), k = view(memory.data()),
                           v = view(memory.data());
  const View4<float> out = view(outputs[0].data());
  Saved<float> saved;
  saved.normalizer = normalizer.data();
  saved.chunk_starts = chunk_starts.data();
  try {
    if (source.below(2) == 0) {
      bidirectional_forward<float>(params, q, k, v, out, &saved);
      bidirectional_backward<float>(params, q, k, v, out, q, saved, view(outputs[1].data()),
                                    view(outputs[2].data()), view(outputs[3].data()));
    } else {
      causal_forward<float>(params, q, k, v, out, &saved);
      causal_backward<float>(params, q, k, v, out, q, saved, view(outputs[1].data()),
                             view(outputs[2].data()), view(outputs[3].data()));
    }
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace favor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  favor::set_poison_scratch(true);
  favor::ByteSource source(data, size);
  if (source.below(2) == 0) {
    favor::run_right_call(source);
  } else {
    favor::run_wrong_call(source);
  }
  return 0;
}
