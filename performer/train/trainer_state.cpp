// SPDX-License-Identifier: Apache-2.0
#include "performer/train/trainer_state.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

using favor::message;
using nlohmann::json;

constexpr int64_t kFormatVersion = 1;
constexpr char kDigits[] = "0123456789abcdef";

std::string to_hex(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

class StateReader {
 public:
  StateReader(const json& object, const std::string& source) : object_(object), source_(source) {
    if (!object.is_object()) fail("is ", object.type_name(), ", expected an object");
    const int64_t version = whole("format_version");
    if (version != kFormatVersion) {
      fail("format_version is ", version, ", expected ", kFormatVersion);
    }
  }

  int64_t whole(const char* key, int64_t least = 0, int64_t most = INT64_MAX) const {
    const json& value = field(key);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      fail(key, " is ", shown(value), ", expected a whole number of at least ", least);
    }
    return value.get<int64_t>();
  }

  double number(const char* key) const {
    const json& value = field(key);
    if (!value.is_number()) fail(key, " is ", shown(value), ", expected a number");
    return value.get<double>();
  }

  std::vector<uint8_t> bytes(const char* key, size_t size) const {
    const json& value = field(key);
    if (!value.is_string()) fail(key, " is ", shown(value), ", expected hexadecimal text");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() != 2 * size) {
      fail(key, " has ", text.size(), " digits, expected ", 2 * size);
    }
    std::vector<uint8_t> result(size);
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t digit = std::string_view(kDigits).find(text[i]);
      if (digit == std::string_view::npos) fail(key, " is not hexadecimal at character ", i);
      result[i / 2] = static_cast<uint8_t>(result[i / 2] << 4 | digit);
    }
    return result;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    throw std::runtime_error(message(source_, ": ", args...));
  }

  const json& field(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, " is missing");
    return *found;
  }

  // A damaged file may hold anything, at any length.
  static std::string shown(const json& value) {
    return value.is_primitive() && !value.is_string() ? value.dump() : value.type_name();
  }

  const json& object_;
  const std::string& source_;
};

}  // namespace

json to_json(const TrainerState& state) {
  return {{"format_version", kFormatVersion},
          {"step", state.step},
          {"tokens", state.tokens},
          {"elapsed_s", state.elapsed_s},
          {"data_epoch", state.data.epoch},
          {"data_batch", state.data.batch},
          {"train_sequences", state.train_sequences},
          {"train_fingerprint", state.train_fingerprint},
          {"redraw_index", state.redraw_index},
          {"best_step", state.best_step},
          {"best_loss", state.best_loss},
          {"stale_evaluations", state.stale_evaluations},
          {"window_loss", state.window_loss},
          {"window_targets", state.window_targets},
          {"torch_rng", to_hex(state.rng)}};
}

TrainerState trainer_state_from_json(const json& object, const std::string& source) {
  const StateReader reader(object, source);
  TrainerState state;
  state.step = reader.whole("step");
  state.tokens = reader.whole("tokens");
  state.elapsed_s = reader.number("elapsed_s");
  state.data.epoch = reader.whole("data_epoch");
  state.data.batch = reader.whole("data_batch");
  state.train_sequences = reader.whole("train_sequences");
  state.train_fingerprint = reader.whole("train_fingerprint");
  state.redraw_index = static_cast<uint32_t>(reader.whole("redraw_index", 0, UINT32_MAX));
  state.best_step = reader.whole("best_step", -1);
  state.best_loss = reader.number("best_loss");
  state.stale_evaluations = reader.whole("stale_evaluations");
  state.window_loss = reader.number("window_loss");
  state.window_targets = reader.whole("window_targets");
  state.rng = reader.bytes("torch_rng", kRngBytes);
  return state;
}

}  // namespace performer
