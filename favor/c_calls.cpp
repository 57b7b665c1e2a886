// SPDX-License-Identifier: Apache-2.0
#include "favor/c_calls.h"

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "favor/isa.h"
#include "favor/parallel.h"
#include "favor/projection.h"
#include "favor/words.h"

namespace favor::c {
namespace {

thread_local std::string last_error;

constexpr double kDefault = std::numeric_limits<double>::quiet_NaN();

std::optional<double> optional(double x) {
  return std::isnan(x) ? std::nullopt : std::optional<double>(x);
}

std::span<const int64_t> offsets(const char* op, const int64_t* data, int64_t num_segments) {
  if (data == nullptr) return {};
  FAVOR_CHECK(num_segments >= 1, op, ": num_segments is ", num_segments,
              ", expected 1 or more (cu_seqlens are given)");
  return {data, static_cast<size_t>(num_segments) + 1};
}

constexpr Word<Compatibility> kCompatibilities[] = {{Compatibility::kNone, "none"},
                                                    {Compatibility::kOfficial, "official"}};

}  // namespace

favor_status fail(favor_status status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

void set_defaults(favor_options& options) {
  options = {};
  options.size = sizeof options;
  options.feature_map = "positive";
  options.scale = options.feature_eps = kDefault;
  options.compatibility = "none";
  options.renormalize = 1;
  options.num_projections = options.num_map_parameter_sets = options.num_key_log_weights = 1;
}

void set_defaults(favor_exact_options& options) {
  options = {};
  options.size = sizeof options;
  options.scale = kDefault;
  options.num_key_log_weights = 1;
}

void set_defaults(favor_projection_spec& spec) {
  const ProjectionSpec defaults;
  spec = {};
  spec.size = sizeof spec;
  spec.kind = "orthogonal";
  spec.row_norm = "chi";
  spec.num_rows = defaults.num_features;
  spec.head_dim = defaults.head_dim;
}

const DecodeState& plain(const char* op, const char* name, const favor_state& state) {
  const auto* hybrid = std::get_if<HybridState>(&state.value);
  FAVOR_CHECK(hybrid == nullptr, op, ": ", name, " has a window of ", hybrid->window,
              " tokens, expected none");
  return std::get<DecodeState>(state.value);
}

ProjectionSpec spec_of(const char* op, const favor_projection_spec* given) {
  const favor_projection_spec spec = resolve(op, "spec", given);
  ProjectionSpec matrix;
  matrix.kind = projection_kind_from_string(&required(op, "spec.kind", spec.kind));
  matrix.row_norm = row_norm_from_string(&required(op, "spec.row_norm", spec.row_norm));
  matrix.num_features = spec.num_rows;
  matrix.head_dim = spec.head_dim;
  matrix.seed = spec.seed;
  matrix.layer = spec.layer;
  matrix.head = spec.head;
  matrix.redraw = spec.redraw;
  return matrix;
}

AttentionParams<float> params_of(const char* op, const favor_options* given) {
  const favor_options options = resolve(op, "options", given);
  AttentionParams<float> params;
  params.feature_map =
      feature_map_from_string(&required(op, "options.feature_map", options.feature_map));
  params.scale = optional(options.scale);
  params.feature_eps = optional(options.feature_eps);
  params.compatibility =
      value_of(kCompatibilities, &required(op, "options.compatibility", options.compatibility),
               "compatibility");
  params.renormalize = options.renormalize != 0;
  params.projection = options.projection;
  params.num_projections = options.num_projections;
  if (options.structured != nullptr) {
    const auto& matrices = options.structured->matrices;
    FAVOR_CHECK(options.num_projections == static_cast<int64_t>(matrices.size()), op,
                ": num_projections is ", options.num_projections, ", expected ", matrices.size(),
                " (the matrices of structured)");
    params.structured = matrices.data();
  }
  params.num_features = options.num_features;
  params.map_parameters = options.map_parameters;
  params.num_map_parameter_sets = options.num_map_parameter_sets;
  params.key_padding_mask = options.key_padding_mask;
  params.key_log_weight = options.key_log_weight;
  params.num_key_log_weights = options.num_key_log_weights;
  params.window = options.window;
  params.sinks = options.sinks;
  params.cu_seqlens_q = offsets(op, options.cu_seqlens_q, options.num_segments);
  params.cu_seqlens_k = offsets(op, options.cu_seqlens_k, options.num_segments);
  return params;
}

ExactParams<float> params_of(const char* op, const favor_exact_options* given) {
  const favor_exact_options options = resolve(op, "options", given);
  ExactParams<float> params;
  params.scale = optional(options.scale);
  params.is_causal = options.is_causal != 0;
  params.key_padding_mask = options.key_padding_mask;
  params.key_log_weight = options.key_log_weight;
  params.num_key_log_weights = options.num_key_log_weights;
  params.window = options.window;
  params.sinks = options.sinks;
  params.cu_seqlens_q = offsets(op, options.cu_seqlens_q, options.num_segments);
  params.cu_seqlens_k = offsets(op, options.cu_seqlens_k, options.num_segments);
  return params;
}

}  // namespace favor::c

using namespace favor;     // NOLINT(google-build-using-namespace): the rest is C
using namespace favor::c;  // NOLINT(google-build-using-namespace)

const char* favor_last_error(void) {
  return last_error.c_str();
}
const char* favor_version(void) {
  return FAVOR_VERSION;
}

const char* favor_isa(void) {
  thread_local std::string name;
  const favor_status status = guarded([] { name = current_isa(); });
  return status == FAVOR_OK ? name.c_str() : "";
}

favor_status favor_num_threads(int* threads) {
  return guarded([&] { required("favor_num_threads", "threads", threads) = num_threads(); });
}

favor_status favor_set_num_threads(int threads) {
  return guarded([&] { set_num_threads(threads); });
}

favor_tensor favor_contiguous(const void* data, int64_t b, int64_t h, int64_t l, int64_t d) {
  return {const_cast<void*>(data), FAVOR_FLOAT32, {b, h, l, d}, {h * l * d, l * d, d, 1}};
}

void favor_options_init(favor_options* options) {
  if (options != nullptr) set_defaults(*options);
}

void favor_exact_options_init(favor_exact_options* options) {
  if (options != nullptr) set_defaults(*options);
}

void favor_projection_spec_init(favor_projection_spec* spec) {
  if (spec != nullptr) set_defaults(*spec);
}
