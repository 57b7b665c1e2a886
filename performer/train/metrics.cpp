// SPDX-License-Identifier: Apache-2.0
#include "performer/train/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"

namespace performer {
namespace {

using nlohmann::ordered_json;

// A line of an earlier run that the continued run will not write again.
bool keep_line(const std::string& line, int64_t last_step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  // A killed run may leave half a line at the end.
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return false;
  return json["step"].get<int64_t>() <= last_step && json.value("split", "") != "test";
}

std::string short_count(double value) {
  char text[32];
  if (value >= 1e6) {
    std::snprintf(text, sizeof text, "%.2fM", value / 1e6);
  } else if (value >= 1e3) {
    std::snprintf(text, sizeof text, "%.1fk", value / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.0f", value);
  }
  return text;
}

}  // namespace

nlohmann::json to_json(const EvalScore& score) {
  nlohmann::json object = {{"targets", score.num_targets},
                           {"loss", score.loss},
                           {"perplexity", score.perplexity},
                           {"accuracy", score.accuracy}};
  for (const UnitValue& unit : score.units) object[unit.name] = unit.value;
  return object;
}

double in_unit(const Unit& unit, double loss, double units_per_target) {
  const double nats = loss / units_per_target;
  return unit.bits ? nats / std::log(2.0) : std::exp(nats);
}

void convert_units(const std::vector<Unit>& units, const EvalScore& score, EvalScore& other) {
  for (size_t u = 0; u < units.size(); ++u) {
    const double per_target = score.units[u].per_target;
    other.units.push_back({units[u].name, in_unit(units[u], other.loss, per_target), per_target});
  }
}

std::string describe(const EvalMetrics& metrics, bool classes) {
  const EvalScore &model = metrics.model, &baseline = metrics.baseline;
  std::string text;
  const auto add = [&](std::string name, double value, double reference) {
    std::replace(name.begin(), name.end(), '_', ' ');
    text += favor::message(name, " ", value, " (baseline ", reference, "), ");
  };
  for (size_t i = 0; i < model.units.size(); ++i) {
    add(model.units[i].name, model.units[i].value, baseline.units[i].value);
  }
  if (classes) {
    add("loss", model.loss, baseline.loss);
  } else if (model.units.empty()) {
    add("perplexity", model.perplexity, baseline.perplexity);
  }
  return text + favor::message("accuracy ", 100 * model.accuracy, " % (baseline ",
                               100 * baseline.accuracy, " %)");
}

std::string to_line(const TrainMetrics& metrics) {
  const ordered_json json = {
      {"step", metrics.step},           {"tokens", metrics.tokens},
      {"loss", metrics.loss},           {"lr", metrics.lr},
      {"grad_norm", metrics.grad_norm}, {"tokens_per_s", metrics.tokens_per_s},
      {"elapsed_s", metrics.elapsed_s}, {"peak_memory_bytes", metrics.peak_memory_bytes}};
  return json.dump();
}

std::string to_line(const EvalMetrics& metrics) {
  ordered_json json = {{"step", metrics.step},
                       {"split", metrics.split},
                       {"targets", metrics.model.num_targets},
                       {"loss", metrics.model.loss},
                       {"perplexity", metrics.model.perplexity},
                       {"accuracy", metrics.model.accuracy},
                       {"baseline_loss", metrics.baseline.loss},
                       {"baseline_perplexity", metrics.baseline.perplexity},
                       {"baseline_accuracy", metrics.baseline.accuracy}};
  for (const UnitValue& unit : metrics.model.units) json[unit.name] = unit.value;
  for (const UnitValue& unit : metrics.baseline.units) json["baseline_" + unit.name] = unit.value;
  return json.dump();
}

std::string to_line(const LayerMetrics& metrics) {
  const AttentionDiagnostics& values = metrics.diagnostics;
  ordered_json json = {{"step", metrics.step},
                       {"layer", metrics.layer},
                       {"query_norm", values.query_norm},
                       {"key_norm", values.key_norm}};
  if (values.relative_variance) json["relative_variance"] = *values.relative_variance;
  json["output_error"] = values.output_error;
  json["uniform_error"] = values.uniform_error;
  return json.dump();
}

MetricsFile::MetricsFile(const std::string& path, int64_t last_step) : path_(path) {
  std::string kept;
  if (last_step >= 0) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      if (keep_line(line, last_step)) kept += line + "\n";
    }
  }
  write_file_atomically(path, kept);
  file_ = std::fopen(path.c_str(), "a");
  if (!file_) {
    throw std::runtime_error(favor::message(path, ": cannot be opened: ", std::strerror(errno)));
  }
}

MetricsFile::~MetricsFile() {
  std::fclose(file_);
}

void MetricsFile::write(const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file_) < 0 || std::fflush(file_) != 0) {
    throw std::runtime_error(favor::message(path_, ": cannot be written: ", std::strerror(errno)));
  }
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%d:%02d:%02d", int(whole / 3600), int(whole / 60 % 60),
                  int(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%d:%02d", int(whole / 60), int(whole % 60));
  }
  return text;
}

void Progress::update(const TrainMetrics& metrics, double progress, double run_s) {
  if (quiet_) return;
  const double left_s = progress > 0 ? run_s * (1 - progress) / progress : 0;
  char text[200];
  std::snprintf(text, sizeof text,
                "step %lld  %3.0f %%  loss %.4f  ppl %.2f  lr %.2e  norm %.2f  %s tokens/s  ETA %s",
                static_cast<long long>(metrics.step), 100 * progress, metrics.loss,
                std::exp(metrics.loss), metrics.lr, metrics.grad_norm,
                short_count(metrics.tokens_per_s).c_str(), format_duration(left_s).c_str());
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", text);
    return;
  }
  constexpr int kWidth = 20;
  const int filled = static_cast<int>(kWidth * progress);
  std::string bar(kWidth, '.');
  bar.replace(0, filled, filled, '#');
  std::fprintf(stderr, "\r\033[K[%s] %s", bar.c_str(), text);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::say(const std::string& text) {
  if (quiet_) return;
  clear();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Progress::clear() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace performer
