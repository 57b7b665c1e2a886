// SPDX-License-Identifier: Apache-2.0
#include "favor/snapshot.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "favor/plan.h"
#include "favor/safetensors.h"
#include "favor/sha256.h"

namespace favor {
namespace {

using Metadata = std::map<std::string, std::string>;

/// What a state belongs to, in the words of the metadata: all of it must agree when it is
/// continued.
Metadata origin(const char* op, const AttentionParams<float>& params, int64_t D) {
  FAVOR_CHECK(D >= 1, op, ": head_dim is ", D, ", expected D >= 1");
  const bool projected = has_projection(params);
  FAVOR_CHECK(!projected || (params.num_features >= 1 && params.num_projections >= 1), op,
              ": num_features and num_projections are ", params.num_features, " and ",
              params.num_projections, ", expected at least 1 and 1");
  FAVOR_CHECK(params.map_parameters == nullptr || params.num_map_parameter_sets >= 1, op,
              ": num_map_parameter_sets is ", params.num_map_parameter_sets,
              ", expected at least 1");
  const FeatureMapKind kind = params.feature_map;
  const auto number = [](double x) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, x).ptr);
  };
  Metadata origin;
  origin["format_version"] = std::to_string(kSnapshotVersion);
  origin["dtype"] = "float32";
  origin["feature_map"] = to_string(kind);
  origin["num_features"] = std::to_string(projected ? params.num_features : D);
  origin["head_dim"] = std::to_string(D);
  origin["scale"] = number(resolve_scale(params, D));
  origin["feature_eps"] = number(resolve_feature_eps(params));
  origin["window"] = std::to_string(params.window);
  origin["sinks"] = std::to_string(params.sinks);
  origin["matrix_hash"] = "none";
  if (projected) {
    const int64_t rows = num_projection_rows(kind, params.num_features);
    std::vector<float> dense;
    for (int64_t p = 0; params.structured != nullptr && p < params.num_projections; ++p) {
      const StructuredProjection& matrix = params.structured[p];
      FAVOR_CHECK(matrix.num_features == rows && matrix.head_dim == D && matrix.is_complete(), op,
                  ": structured[", p, "] is a matrix of ", matrix.num_features, " x ",
                  matrix.head_dim, ", expected ", rows, " x ", D, ", complete");
      const std::vector<float> part = matrix.to_dense();
      dense.insert(dense.end(), part.begin(), part.end());
    }
    const float* matrix = params.structured == nullptr ? params.projection : dense.data();
    origin["matrix_hash"] = matrix_hash(matrix, params.num_projections * rows * D);
  }
  origin["map_parameters_hash"] = "none";
  if (params.map_parameters != nullptr) {
    origin["map_parameters_hash"] = matrix_hash(
        params.map_parameters, params.num_map_parameter_sets * num_map_parameters(kind, D));
  }
  return origin;
}

Metadata hybrid_origin(const char* op, const AttentionParams<float>& params, int64_t D) {
  FAVOR_CHECK(params.window >= 1 && params.sinks >= 0, op, ": window and sinks are ", params.window,
              " and ", params.sinks, ", expected at least 1 and 0");
  return origin(op, params, D);
}

/// Checksum of everything but itself.
std::string checksum(const std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  Sha256 sha;
  for (const auto& [key, value] : metadata) {
    if (key != "checksum")
      sha.update((key + "=" + value + "\n").data(), key.size() + value.size() + 2);
  }
  std::vector<const StoredTensor*> ordered;
  for (const StoredTensor& tensor : tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const StoredTensor* tensor : ordered) {
    sha.update(tensor->name.data(), tensor->name.size());
    sha.update(tensor->data, tensor->bytes);
  }
  return sha.digest();
}

StoredTensor tensor_of(const char* name, std::vector<int64_t> shape,
                       const std::vector<float>& values) {
  return {name, StoredType::kF32, std::move(shape), values.data(), values.size() * sizeof(float)};
}

/// The occupied part of the hot tokens, without padding: [B, H, num_hot, M] and [B, H, num_hot, E].
struct HotTokens {
  std::vector<float> features, values;

  explicit HotTokens(const DecodeState& state) {
    const int64_t n = state.num_hot, M = state.M, E = state.E;
    for (int64_t row = 0; n > 0 && row < state.B * state.H * kHotTokens; ++row) {
      if (row % kHotTokens >= n) continue;
      const auto feature = state.hot_features.begin() + row * state.hot_stride();
      const auto value = state.hot_values.begin() + row * E;
      features.insert(features.end(), feature, feature + M);
      values.insert(values.end(), value, value + E);
    }
  }

  void restore(DecodeState& state) const {
    make_steppable(state);
    const int64_t n = state.num_hot, M = state.M, E = state.E;
    for (int64_t i = 0; i < state.B * state.H * n; ++i) {
      const int64_t row = i / n * kHotTokens + i % n;
      std::copy_n(features.begin() + i * M, M,
                  state.hot_features.begin() + row * state.hot_stride());
      std::copy_n(values.begin() + i * E, E, state.hot_values.begin() + row * E);
    }
  }
};

/// A snapshot as its tensors and metadata, which live as long as the object and the state.
struct Snapshot {
  HotTokens hot;
  std::vector<StoredTensor> tensors;
  Metadata metadata;

  Snapshot(const char* op, const DecodeState& state, const AttentionParams<float>& params,
           int64_t head_dim)
      : hot((check_sizes(op, "state", state), state)), metadata(origin(op, params, head_dim)) {
    const int64_t B = state.B, H = state.H, M = state.M, E = state.E;
    FAVOR_CHECK(std::to_string(M) == metadata["num_features"], op, ": state has M = ", M,
                ", expected ", metadata["num_features"], " (num_features)");
    FAVOR_CHECK(state.position >= 0, op, ": state has position ", state.position,
                ", expected 0 or more");
    metadata["position"] = std::to_string(state.position);
    tensors.push_back(tensor_of("c", {B, H, M}, state.c));
    tensors.push_back(tensor_of("S", {B, H, M, E}, state.S));
    tensors.push_back(tensor_of("z", {B, H, M}, state.z));
    if (!state.S_rest.empty() || !state.z_rest.empty()) {
      tensors.push_back(tensor_of("S_rest", {B, H, M, E}, state.S_rest));
      tensors.push_back(tensor_of("z_rest", {B, H, M}, state.z_rest));
    }
    if (state.num_hot > 0) {
      tensors.push_back(tensor_of("hot_features", {B, H, state.num_hot, M}, hot.features));
      tensors.push_back(tensor_of("hot_values", {B, H, state.num_hot, E}, hot.values));
    }
    metadata["checksum"] = checksum(tensors, metadata);
  }

  Snapshot(const char* op, const HybridState& state, const AttentionParams<float>& params)
      : Snapshot(op, state.far, params, state.D) {
    FAVOR_CHECK(state.window >= 1 && state.window == params.window && state.sinks == params.sinks,
                op, ": state has window ", state.window, " and sinks ", state.sinks, ", expected ",
                params.window, " and ", params.sinks, " (as in params)");
    check_near_keys(op, state);
    FAVOR_CHECK(state.far.B == state.B && state.far.H == state.H && state.far.E == state.E, op,
                ": state.far has B, H, E = ", state.far.B, ", ", state.far.H, ", ", state.far.E,
                ", expected ", state.B, ", ", state.H, ", ", state.E, " (as state)");
    FAVOR_CHECK(state.position >= 0, op, ": state has position ", state.position,
                ", expected 0 or more");
    const int64_t B = state.B, H = state.H, slots = state.num_slots();
    metadata["position"] = std::to_string(state.position);
    tensors.push_back(tensor_of("near_keys", {B, H, slots, state.D}, state.keys));
    tensors.push_back(tensor_of("near_values", {B, H, slots, state.E}, state.values));
    tensors.push_back(tensor_of("near_log_weights", {B, H, slots}, state.log_weights));
    metadata["checksum"] = checksum(tensors, metadata);
  }
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

/// Reads one snapshot; all that is wrong with it is reported as `name: ...`.
class Reader {
 public:
  Reader(const std::string& name, const SafetensorsFile& file) : name_(name), file_(file) {}

  /// The state of a stream with a window, its far keys included.
  HybridState read_hybrid(const Metadata& expected, const AttentionParams<float>& params,
                          int64_t D) const {
    check_origin(expected);
    check(file_.contains("near_keys"),
          "no snapshot of a stream with a window: it has no near_keys");
    DecodeState far = read_sums(expected);
    HybridState state(far.B, far.H, far.M, D, far.E, params.window, params.sinks);
    state.position = far.position;
    state.far = std::move(far);
    const int64_t B = state.B, H = state.H, slots = state.num_slots();
    state.keys = values("near_keys", {B, H, slots, D});
    state.values = values("near_values", {B, H, slots, state.E});
    state.log_weights = values("near_log_weights", {B, H, slots});
    return state;
  }

  DecodeState read(const Metadata& expected) const {
    check_origin(expected);
    check(!file_.contains("near_keys"),
          "snapshot of a stream with a window, expected one of sums alone");
    return read_sums(expected);
  }

 private:
  void check_origin(const Metadata& expected) const {
    // First what explains the rest: another version or map differs in all of it.
    for (const char* key : {"format_version", "dtype", "feature_map", "num_features", "head_dim"}) {
      check_equal(key, expected.at(key));
    }
    for (const auto& [key, value] : expected) check_equal(key, value);
    const std::string sum = checksum(file_.tensors(), file_.metadata());
    check_equal("checksum", sum);
  }

  DecodeState read_sums(const Metadata& expected) const {
    const std::vector<int64_t> sizes = file_.at("S").shape;
    check(sizes.size() == 4, "tensor 'S' has shape ", shape_text(sizes), ", expected [B, H, M, E]");
    check(std::to_string(sizes[2]) == expected.at("num_features"), "tensor 'S' has shape ",
          shape_text(sizes), ", expected M = ", expected.at("num_features"), " (num_features)");
    DecodeState state(sizes[0], sizes[1], sizes[2], sizes[3]);
    state.position = position();
    const int64_t B = state.B, H = state.H, M = state.M, E = state.E;
    state.S = values("S", {B, H, M, E});
    state.c = values("c", {B, H, M});
    state.z = values("z", {B, H, M});
    if (file_.contains("S_rest") || file_.contains("z_rest")) {
      state.S_rest = values("S_rest", {B, H, M, E});
      state.z_rest = values("z_rest", {B, H, M});
    }
    if (file_.contains("hot_features") || file_.contains("hot_values")) read_hot(state);
    return state;
  }

  template <class... Args>
  void check(bool condition, const Args&... args) const {
    if (!condition) throw std::runtime_error(message(name_, ": ", args...));
  }

  void check_equal(const std::string& key, const std::string& expected) const {
    const auto found = file_.metadata().find(key);
    check(found != file_.metadata().end(), "no snapshot of a decoding state: it has no ", key);
    check(found->second == expected, key, " is ", printable(found->second), ", expected ", expected,
          key == "checksum" ? " (damaged file?)" : "");
  }

  // Texts come from the file: no line break or terminal command in one may reach the screen.
  static std::string printable(std::string text) {
    for (char& c : text) c = static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
    return text;
  }

  int64_t position() const {
    const auto found = file_.metadata().find("position");
    check(found != file_.metadata().end(), "no snapshot of a decoding state: it has no position");
    const std::string& text = found->second;
    int64_t value = -1;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    check(result.ec == std::errc() && result.ptr == text.data() + text.size() && value >= 0,
          "position is ", printable(text), ", expected a whole number, 0 or above");
    return value;
  }

  std::vector<float> values(const char* name, const std::vector<int64_t>& shape) const {
    const StoredTensor& tensor = file_.at(name);
    check(tensor.type == StoredType::kF32 && tensor.shape == shape, "tensor '", name, "' is ",
          to_string(tensor.type), " of shape ", shape_text(tensor.shape), ", expected F32 of ",
          shape_text(shape));
    std::vector<float> result(tensor.bytes / sizeof(float));
    if (!result.empty()) std::memcpy(result.data(), tensor.data, tensor.bytes);
    return result;
  }

  void read_hot(DecodeState& state) const {
    const std::vector<int64_t> shape = file_.at("hot_features").shape;
    check(shape.size() == 4 && shape[2] >= 1 && shape[2] < kHotTokens,
          "tensor 'hot_features' has shape ", shape_text(shape), ", expected 1 to ", kHotTokens - 1,
          " tokens in its third place");
    HotTokens hot((DecodeState()));
    state.num_hot = shape[2];
    hot.features = values("hot_features", {state.B, state.H, state.num_hot, state.M});
    hot.values = values("hot_values", {state.B, state.H, state.num_hot, state.E});
    hot.restore(state);
  }

  const std::string& name_;
  const SafetensorsFile& file_;
};

}  // namespace

std::string matrix_hash(const float* rows, int64_t floats) {
  Sha256 sha;
  sha.update(rows, static_cast<size_t>(floats) * sizeof(float));
  return sha.digest();
}

std::string state_to_bytes(const DecodeState& state, const AttentionParams<float>& params,
                           int64_t head_dim) {
  const Snapshot snapshot("state_to_bytes", state, params, head_dim);
  return safetensors_bytes(snapshot.tensors, snapshot.metadata);
}

DecodeState state_from_bytes(std::string_view bytes, const AttentionParams<float>& params,
                             int64_t head_dim, const std::string& name) {
  const Metadata expected = origin("state_from_bytes", params, head_dim);
  return Reader(name, SafetensorsFile(name, bytes)).read(expected);
}

std::string state_to_bytes(const HybridState& state, const AttentionParams<float>& params) {
  const Snapshot snapshot("state_to_bytes", state, params);
  return safetensors_bytes(snapshot.tensors, snapshot.metadata);
}

HybridState hybrid_state_from_bytes(std::string_view bytes, const AttentionParams<float>& params,
                                    int64_t head_dim, const std::string& name) {
  const Metadata expected = hybrid_origin("hybrid_state_from_bytes", params, head_dim);
  return Reader(name, SafetensorsFile(name, bytes)).read_hybrid(expected, params, head_dim);
}

void save_state(const std::string& path, const HybridState& state,
                const AttentionParams<float>& params) {
  const Snapshot snapshot("save_state", state, params);
  write_safetensors(path, snapshot.tensors, snapshot.metadata);
}

HybridState load_hybrid_state(const std::string& path, const AttentionParams<float>& params,
                              int64_t head_dim) {
  const Metadata expected = hybrid_origin("load_hybrid_state", params, head_dim);
  return Reader(path, SafetensorsFile(path)).read_hybrid(expected, params, head_dim);
}

void save_state(const std::string& path, const DecodeState& state,
                const AttentionParams<float>& params, int64_t head_dim) {
  const Snapshot snapshot("save_state", state, params, head_dim);
  write_safetensors(path, snapshot.tensors, snapshot.metadata);
}

DecodeState load_state(const std::string& path, const AttentionParams<float>& params,
                       int64_t head_dim) {
  const Metadata expected = origin("load_state", params, head_dim);
  return Reader(path, SafetensorsFile(path)).read(expected);
}

}  // namespace favor
