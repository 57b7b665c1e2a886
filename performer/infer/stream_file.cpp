// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/stream_file.h"

#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "favor/sha256.h"
#include "performer/data/safetensors.h"

namespace performer {
namespace {

using favor::message;
using Metadata = std::map<std::string, std::string>;
using Shape = std::vector<int64_t>;

constexpr const char* kFormat = "performer-stream";

std::string shape_text(const Shape& shape) {
  return message(at::IntArrayRef(shape));
}

std::string checksum(const std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  favor::Sha256 sha;
  const auto add = [&sha](const std::string& text) { sha.update(text.data(), text.size()); };
  for (const auto& [key, value] : metadata) {
    if (key != "checksum") add(key + "=" + value + "\n");
  }
  std::map<std::string, const StoredTensor*> ordered;
  for (const StoredTensor& tensor : tensors) ordered[tensor.name] = &tensor;
  for (const auto& [name, tensor] : ordered) {
    add(name + shape_text(tensor->shape));
    sha.update(tensor->data, tensor->bytes);
  }
  return sha.digest();
}

// Layers whose heads are of two methods number the second as a group.
std::string array_name(size_t layer, size_t group, const std::string& name) {
  const std::string of_group = group == 0 ? "" : "groups." + std::to_string(group) + ".";
  return "layers." + std::to_string(layer) + "." + of_group + name;
}

// Tensors and what they point to.
class Writer {
 public:
  Metadata metadata;

  void add(const std::string& name, StoredType type, Shape shape, const void* data, size_t bytes) {
    tensors_.push_back({name, type, std::move(shape), data, bytes});
  }
  void add(const std::string& name, const torch::Tensor& tensor) {
    held_.push_back(tensor.contiguous());
    add(name, StoredType::kF32, held_.back().sizes().vec(), held_.back().const_data_ptr(),
        held_.back().nbytes());
  }
  void write(const std::string& path) {
    metadata["checksum"] = checksum(tensors_, metadata);
    write_safetensors(path, tensors_, metadata);
  }

 private:
  std::vector<StoredTensor> tensors_;
  std::vector<torch::Tensor> held_;
};

// Reads one file; all that is wrong with it is reported as `file: ...`.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  template <class... Args>
  void check(bool condition, const Args&... args) const {
    if (!condition) throw std::runtime_error(message(path_, ": ", args...));
  }

  const std::string& text(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    check(found != file_.metadata().end(), "is no stream of ", kFormat, ": it has no ", key);
    return found->second;
  }

  void check_text(const std::string& key, const std::string& expected, const char* why) const {
    std::string found = text(key);
    // Texts come from the file: no terminal command in one may reach the screen.
    for (char& c : found) c = static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
    check(found == expected, key, " is ", found, ", expected ", expected, why);
  }

  void check_whole() const {
    check_text("checksum", checksum(file_.tensors(), file_.metadata()), " (damaged file?)");
  }

  template <class T>
  T number(const std::string& key) const {
    const std::string& word = text(key);
    T value = 0;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
    check(result.ec == std::errc() && result.ptr == word.data() + word.size() && value >= T{0}, key,
          " is no whole number of at least 0");
    return value;
  }

  bool contains(const std::string& name) const { return file_.contains(name); }

  template <class T>
  std::vector<T> values(const std::string& name, StoredType type) const {
    const StoredTensor& tensor = file_.at(name);
    check(tensor.type == type && tensor.shape.size() == 1, "tensor ", name, " is ",
          favor::to_string(tensor.type), " ", shape_text(tensor.shape), ", expected ",
          favor::to_string(type), " [n]");
    std::vector<T> result(tensor.bytes / sizeof(T));
    if (!result.empty()) std::memcpy(result.data(), tensor.data, tensor.bytes);
    return result;
  }

  void copy(const std::string& name, const Shape& shape, float* to) const {
    const StoredTensor& tensor = file_.at(name);
    check(tensor.type == StoredType::kF32 && tensor.shape == shape, "tensor ", name, " is ",
          favor::to_string(tensor.type), " ", shape_text(tensor.shape), ", expected F32 ",
          shape_text(shape));
    if (tensor.bytes > 0) std::memcpy(to, tensor.data, tensor.bytes);
  }

  // Fills the arrays of a state that has their shapes.
  void fill(size_t layer, size_t group, HeadsState& state) const {
    if (int64_t* hot = hot_tokens(state)) *hot = number<int64_t>("num_hot");
    for (const StateArray& array : state_arrays(state)) {
      const std::string name = array_name(layer, group, array.name);
      if (array.optional && !file_.contains(name)) continue;
      if (array.tensor != nullptr) {
        copy(name, array.shape, array.tensor->mutable_data_ptr<float>());
        continue;
      }
      int64_t count = 1;
      for (const int64_t size : array.shape) count *= size;
      array.values->resize(static_cast<size_t>(count));
      copy(name, array.shape, array.values->data());
    }
    try {
      const auto* hybrid = std::get_if<favor::HybridState>(&state);
      const auto* sums = hybrid ? &hybrid->far : std::get_if<favor::DecodeState>(&state);
      if (sums) favor::check_sizes("layer", std::to_string(layer).c_str(), *sums);
    } catch (const favor::Error& error) {
      throw std::runtime_error(message(path_, ": ", error.what()));
    }
  }

 private:
  const std::string& path_;
  SafetensorsFile file_;
};

}  // namespace

std::string weights_hash(LanguageModel& model) {
  favor::Sha256 sha;
  const auto add = [&sha](const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor values = tensor.detach().contiguous();
    const std::string head = name + shape_text(values.sizes().vec());
    sha.update(head.data(), head.size());
    sha.update(values.const_data_ptr(), values.nbytes());
  };
  for (const auto& item : model->named_parameters()) add(item.key(), item.value());
  for (const auto& item : model->named_buffers()) add(item.key(), item.value());
  return sha.digest();
}

void save_stream(const std::string& path, const SavedStream& stream, LanguageModel& model) {
  DecoderState state = stream.start.state;
  FAVOR_CHECK(state.streams() <= 1 && state.positions.empty(), "save_stream: state holds ",
              state.streams(), " streams, expected 1");
  int64_t num_hot = 0;  // the same in all layers
  for (AttentionState& layer : state.layers) {
    for (HeadsState& heads : layer.groups) {
      if (const int64_t* hot = hot_tokens(heads)) num_hot = *hot;
    }
  }
  Writer writer;
  const RandomPlace& random = stream.random;
  writer.metadata = {{"format", kFormat},
                     {"format_version", std::to_string(kStreamFileVersion)},
                     {"weights", weights_hash(model)},
                     {"position", std::to_string(state.position)},
                     {"length", std::to_string(stream.start.length)},
                     {"ended", stream.ended ? "1" : "0"},
                     {"num_hot", std::to_string(num_hot)},
                     {"random_seed", std::to_string(random.seed)},
                     {"random_stream", std::to_string(random.stream)},
                     {"random_substream", std::to_string(random.substream)},
                     {"random_block", std::to_string(random.position.block)},
                     {"random_used", std::to_string(random.position.used)}};
  const std::vector<int64_t>& pending = stream.start.pending;
  writer.add("pending", StoredType::kI64, {std::ssize(pending)}, pending.data(),
             pending.size() * sizeof(int64_t));
  const std::vector<uint8_t> recent = stream.start.recent.last(RecentTokens::kMost);
  writer.add("recent", StoredType::kU8, {std::ssize(recent)}, recent.data(), recent.size());
  for (size_t i = 0; i < state.layers.size(); ++i) {
    for (size_t g = 0; g < state.layers[i].groups.size(); ++g) {
      for (const StateArray& array : state_arrays(state.layers[i].groups[g])) {
        const std::string name = array_name(i, g, array.name);
        if (array.tensor != nullptr) {
          writer.add(name, *array.tensor);
        } else if (!array.optional || !array.values->empty()) {
          writer.add(name, StoredType::kF32, array.shape, array.values->data(),
                     array.values->size() * sizeof(float));
        }
      }
    }
  }
  writer.write(path);
}

SavedStream load_stream(const std::string& path, LanguageModel& model) {
  const ModelConfig& config = model->config();
  const Reader file(path);
  file.check_text("format", kFormat, "");
  file.check_text("format_version", std::to_string(kStreamFileVersion), "");
  file.check_whole();
  file.check_text("weights", weights_hash(model), " (the stream of another model)");
  SavedStream stream;
  StreamStart& start = stream.start;
  DecoderState& state = start.state;
  state.position = file.number<int64_t>("position");
  start.length = file.number<int64_t>("length");
  stream.ended = file.number<int64_t>("ended") != 0;
  stream.random.seed = file.number<uint64_t>("random_seed");
  stream.random.stream = file.number<uint64_t>("random_stream");
  stream.random.substream = file.number<uint32_t>("random_substream");
  stream.random.position.block = file.number<uint64_t>("random_block");
  stream.random.position.used = file.number<uint32_t>("random_used");
  start.pending = file.values<int64_t>("pending", StoredType::kI64);
  const bool in_range = std::all_of(start.pending.begin(), start.pending.end(),
                                    [&](int64_t id) { return id >= 0 && id < config.vocab_size; });
  file.check(!start.pending.empty() && in_range, "pending holds ", start.pending.size(),
             " tokens, expected at least 1 and all below ", config.vocab_size);
  for (const uint8_t id : file.values<uint8_t>("recent", StoredType::kU8)) start.recent.add(id);
  if (state.position == 0) return stream;
  state = model->blank_state(1, state.position);
  for (size_t i = 0; i < state.layers.size(); ++i) {
    for (size_t g = 0; g < state.layers[i].groups.size(); ++g) {
      file.fill(i, g, state.layers[i].groups[g]);
    }
  }
  return stream;
}

}  // namespace performer
