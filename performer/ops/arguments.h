// SPDX-License-Identifier: Apache-2.0
// What the operators take beside q, k and v. Schemas, kernels, autograd and callers all go through
// the two structs here: a new argument is one member, one entry of fields() and one of kSchema.
#ifndef PERFORMER_OPS_ARGUMENTS_H_
#define PERFORMER_OPS_ARGUMENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace performer {

/// Arguments of exact attention.
struct ExactArguments {
  /// [B, S] bool, true = ignore this key.
  std::optional<at::Tensor> key_padding_mask;
  /// [B, S], or [B, W, S] with W = 1 or G: added to the logarithm of a key's weight, -inf ignores
  /// it.
  std::optional<at::Tensor> key_log_weight;
  /// Packed segments: N + 1 offsets, int32 or int64. Both or none.
  std::optional<at::Tensor> cu_seqlens_q;
  std::optional<at::Tensor> cu_seqlens_k;
  std::optional<double> scale;  ///< empty: 1/sqrt(D), or 1 for the generalised maps
  int64_t window = 0;
  int64_t sinks = 0;

  static constexpr const char* kSchema =
      "Tensor? key_padding_mask=None, Tensor? key_log_weight=None, Tensor? cu_seqlens_q=None, "
      "Tensor? cu_seqlens_k=None, float? scale=None, int window=0, int sinks=0";

  /// References to all members in the order of kSchema.
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.key_padding_mask, self.key_log_weight, self.cu_seqlens_q,
                    self.cu_seqlens_k, self.scale, self.window, self.sinks);
  }
};

/// Arguments of attention by random features.
struct FavorArguments : ExactArguments {
  /// Rows w_f: [R, D], or [P, R, D] with P = 1 or G; or int32 and with other columns, the compact
  /// rows of performer::draw_projection, which fast transforms apply. Empty: a generalised map of x
  /// itself.
  std::optional<at::Tensor> projection;
  /// Of a fitted map: [n], or [Q, n] with Q = 1 or G. Empty: fitted to each bidirectional call.
  std::optional<at::Tensor> map_parameters;
  std::string feature_map = "positive";
  std::optional<double> feature_eps;  ///< empty: the map's default
  std::string compatibility = "none";
  bool renormalize = true;

  static constexpr const char* kSchema =
      "Tensor? projection=None, Tensor? map_parameters=None, str feature_map=\"positive\", "
      "float? feature_eps=None, str compatibility=\"none\", bool renormalize=True";

  /// References to all members in the order of ExactArguments::kSchema followed by kSchema.
  template <class Self>
  static auto fields(Self& self) {
    return std::tuple_cat(ExactArguments::fields(self),
                          std::tie(self.projection, self.map_parameters, self.feature_map,
                                   self.feature_eps, self.compatibility, self.renormalize));
  }
};

/// The part of an operator's schema that names the arguments.
inline std::string schema_of(const ExactArguments&) {
  return ExactArguments::kSchema;
}
inline std::string schema_of(const FavorArguments&) {
  return std::string(ExactArguments::kSchema) + ", " + FavorArguments::kSchema;
}

}  // namespace performer

#endif  // PERFORMER_OPS_ARGUMENTS_H_
