// SPDX-License-Identifier: Apache-2.0
// `performer info`: the build and the machine, or what a model or run is made of.
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "favor/check.h"
#include "favor/isa.h"
#include "performer/data/safetensors.h"
#include "performer/train/run_folder.h"

namespace performer::cli {
namespace {

using nlohmann::ordered_json;

ordered_json describe_build() {
  return {{"version", version()},
          {"revision", revision()},
          {"torch", TORCH_VERSION},
          {"threads", at::get_num_threads()},
          {"isa", favor::current_isa()},
          {"available_isas", favor::available_isas()},
          {"compiled_isas", favor::compiled_isas()}};
}

ordered_json describe_model(const std::string& path) {
  const std::string folder = model_folder(path);
  const SafetensorsFile file((std::filesystem::path(folder) / "model.safetensors").string());
  // Random matrices are drawn, not learned.
  int64_t parameters = 0;
  int64_t random = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    const auto count = static_cast<int64_t>(tensor.bytes) / bytes_per_element(tensor.type);
    (tensor.name.ends_with("projection") ? random : parameters) += count;
  }
  return {{"model", folder},
          {"num_parameters", parameters},
          {"num_random_numbers", random},
          {"config", to_json(read_model_config(folder).config)}};
}

std::string as_text(const ordered_json& object, const std::string& indent = "") {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      text += indent + key + "\n" + as_text(value, indent + "  ");
    } else {
      text += indent + key + std::string(key.size() < 22 ? 22 - key.size() : 1, ' ') +
              (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
    }
  }
  return text;
}

}  // namespace

int run_info(const Command& command, const std::vector<std::string>& arguments) {
  std::string model;
  std::string output;
  bool json = false;
  bool force = false;
  Options options(command);
  options.positional("model", model, "run, checkpoint or model folder");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", json, "JSON instead of text");
  options.add("--force", force, "replace an existing file");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  check_writable(output, force);
  const ordered_json object = model.empty() ? describe_build() : describe_model(model);
  write_result(output, json ? object.dump(2) + "\n" : as_text(object), force);
  return 0;
}

}  // namespace performer::cli
