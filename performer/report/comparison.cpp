// SPDX-License-Identifier: Apache-2.0
#include "performer/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "favor/check.h"

namespace performer {
namespace {

using favor::message;
using nlohmann::json;
using nlohmann::ordered_json;

// Of the run itself, after the numbers of its test set.
constexpr const char* kRunNumbers[] = {"steps", "tokens_per_s", "peak_memory_bytes", "elapsed_s"};

bool is_score(const std::string& key) {
  return key != "step" && key != "targets" && key != "num_targets";
}

// A set of `result`, or an empty object.
const json& set_of(const json& result, const std::string& split) {
  static const json none = json::object();
  return result.contains(split) && result[split].is_object() ? result[split] : none;
}

// The set that a run is judged by.
const json& judged_set(const json& result) {
  const json& test = set_of(result, "test");
  return test.empty() ? set_of(result, "valid") : test;
}

// "tokens_per_s" -> "tokens per s", with units where files have others than people want.
std::string heading(const std::string& key) {
  if (key == "peak_memory_bytes") return "peak memory, MB";
  if (key == "elapsed_s") return "time, s";
  if (key == "tokens_per_s") return "tokens/s";
  std::string text = key;
  std::replace(text.begin(), text.end(), '_', ' ');
  return key.find("accuracy") != std::string::npos ? text + ", %" : text;
}

double shown_factor(const std::string& key) {
  if (key == "peak_memory_bytes") return 1e-6;
  return key.find("accuracy") != std::string::npos ? 100 : 1;
}

std::string four_digits(double value) {
  char text[48];
  // Whole numbers as they are: 12345, not 1.234e+04.
  std::snprintf(text, sizeof text, std::abs(value) >= 1000 ? "%.0f" : "%.4g", value);
  return text;
}

std::string shown(const std::string& key, const Spread& spread) {
  const double factor = shown_factor(key);
  std::string text = four_digits(factor * spread.mean);
  if (spread.deviation) {
    char deviation[48];
    const double value = factor * *spread.deviation;
    std::snprintf(deviation, sizeof deviation, value >= 100 ? "%.0f" : "%.2g", value);
    text += message(" ± ", deviation);
  }
  return text;
}

// Evaluations that every seed has had.
void join_progress(const std::vector<const ComparedRun*>& runs, ComparedMethod& method) {
  size_t common = runs.empty() ? 0 : runs.front()->progress.size();
  for (const ComparedRun* run : runs) common = std::min(common, run->progress.size());
  for (size_t i = 0; i < common; ++i) {
    std::vector<double> times, losses;
    for (const ComparedRun* run : runs) {
      times.push_back(run->progress[i].x);
      losses.push_back(run->progress[i].y);
    }
    method.times.push_back(spread_of(times));
    method.losses.push_back(spread_of(losses));
  }
}

ComparedMethod joined(const std::vector<const ComparedRun*>& all) {
  ComparedMethod method;
  method.task = all.front()->plan.task;
  method.method = all.front()->plan.method;
  method.planned = std::ssize(all);
  std::vector<const ComparedRun*> done;
  for (const ComparedRun* run : all) {
    if (run->result.is_object()) {
      done.push_back(run);
    } else if (std::count(method.failures.begin(), method.failures.end(), run->failure) == 0) {
      method.failures.push_back(run->failure);
    }
  }
  method.done = std::ssize(done);
  if (done.empty()) return method;
  const auto add = [&](const std::string& prefix, const std::string& key, const auto& value_of) {
    std::vector<double> values;
    for (const ComparedRun* run : done) {
      const json& from = value_of(*run);
      if (from.contains(key) && from[key].is_number()) values.push_back(from[key].get<double>());
    }
    if (std::ssize(values) == method.done) {
      method.numbers.emplace_back(prefix + key, spread_of(values));
    }
  };
  const auto add_set = [&](const std::string& prefix, const auto& set_in) {
    const json& first = set_in(done.front()->result);
    for (const auto& [key, value] : first.items()) {
      if (value.is_number() && is_score(key)) {
        add(prefix, key, [&](const ComparedRun& run) -> const json& { return set_in(run.result); });
      }
    }
    for (const auto& [key, value] : set_of(first, "baseline").items()) {
      if (value.is_number() && is_score(key)) method.baseline.emplace_back(prefix + key, value);
    }
  };
  add_set("", judged_set);
  for (const std::string split : {"ood", "train"}) {
    add_set(split + "_", [&](const json& result) -> const json& { return set_of(result, split); });
  }
  for (const char* key : kRunNumbers) {
    add("", key, [](const ComparedRun& run) -> const json& { return run.result; });
  }
  join_progress(done, method);
  return method;
}

// The names of tasks, each once, in order.
std::vector<std::string> tasks_of(const std::vector<ComparedMethod>& methods) {
  std::vector<std::string> tasks;
  for (const ComparedMethod& method : methods) {
    if (tasks.empty() || tasks.back() != method.task) tasks.push_back(method.task);
  }
  return tasks;
}

std::string task_table(const std::string& task, const std::vector<ComparedMethod>& methods) {
  std::vector<std::string> keys;
  const ComparedMethod* with_baseline = nullptr;
  for (const ComparedMethod& method : methods) {
    if (method.task != task) continue;
    if (with_baseline == nullptr && !method.baseline.empty()) with_baseline = &method;
    for (const auto& [key, spread] : method.numbers) {
      if (std::count(keys.begin(), keys.end(), key) == 0) keys.push_back(key);
    }
  }
  std::string head = "| " + task + " | seeds |", rule = "| --- | --- |";
  for (const std::string& key : keys) {
    head += " " + heading(key) + " |";
    rule += " --- |";
  }
  std::string text = head + "\n" + rule + "\n";
  if (with_baseline != nullptr) {
    text += "| baseline | |";
    for (const std::string& key : keys) {
      const auto& baseline = with_baseline->baseline;
      const auto found = std::find_if(baseline.begin(), baseline.end(),
                                      [&](const auto& item) { return item.first == key; });
      text += found == baseline.end() ? " |" : " " + shown(key, {found->second, {}}) + " |";
    }
    text += "\n";
  }
  std::string failures;
  for (const ComparedMethod& method : methods) {
    if (method.task != task) continue;
    text += "| " + method.method + " | " +
            (method.done == method.planned ? message(method.done)
                                           : message(method.done, " of ", method.planned)) +
            " |";
    for (const std::string& key : keys) {
      const std::optional<Spread> number = method.number(key);
      text += " " + (number ? shown(key, *number) : std::string("-")) + " |";
    }
    text += "\n";
    for (const std::string& failure : method.failures) {
      failures += message("\n", method.method, " failed: ", failure, "\n");
    }
  }
  return text + failures;
}

// Test loss over another number, a point a method.
Chart points_over(const std::string& task, const std::vector<const ComparedMethod*>& methods,
                  const std::string& key) {
  Chart chart{task, heading(key), "loss", false, {}};
  for (size_t i = 0; i < methods.size(); ++i) {
    const std::optional<Spread> x = methods[i]->number(key), y = methods[i]->number("loss");
    if (!x || !y) continue;
    const double factor = shown_factor(key);
    chart.series.push_back({methods[i]->method,
                            i,
                            false,
                            false,
                            {{factor * x->mean, y->mean, factor * x->deviation.value_or(0),
                              y->deviation.value_or(0)}}});
  }
  return chart;
}

Chart loss_over_time(const std::string& task, const std::vector<const ComparedMethod*>& methods) {
  Chart chart{task, "seconds of training", "validation loss", false, {}};
  for (size_t i = 0; i < methods.size(); ++i) {
    Series series{methods[i]->method, i, false, false, {}};
    for (size_t j = 0; j < methods[i]->losses.size(); ++j) {
      const Spread &x = methods[i]->times[j], &y = methods[i]->losses[j];
      series.points.push_back({x.mean, y.mean, 0, y.deviation.value_or(0)});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  for (const double value : values) spread.mean += value / double(values.size());
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / double(values.size() - 1));
  return spread;
}

std::optional<Spread> ComparedMethod::number(const std::string& key) const {
  for (const auto& [name, spread] : numbers) {
    if (name == key) return spread;
  }
  return std::nullopt;
}

std::vector<ComparedMethod> compared_methods(const std::vector<ComparedRun>& runs) {
  std::vector<ComparedMethod> methods;
  for (size_t begin = 0; begin < runs.size();) {
    std::vector<const ComparedRun*> group;
    const PlannedRun& first = runs[begin].plan;
    while (begin < runs.size() && runs[begin].plan.task == first.task &&
           runs[begin].plan.method == first.method) {
      group.push_back(&runs[begin++]);
    }
    methods.push_back(joined(group));
  }
  return methods;
}

std::string comparison_table(const std::vector<ComparedMethod>& methods) {
  std::string text;
  for (const std::string& task : tasks_of(methods)) {
    text += (text.empty() ? "" : "\n") + task_table(task, methods);
  }
  return text;
}

ordered_json comparison_json(const std::vector<ComparedMethod>& methods) {
  ordered_json list = ordered_json::array();
  for (const ComparedMethod& method : methods) {
    ordered_json object = {{"task", method.task},
                           {"method", method.method},
                           {"seeds", method.done},
                           {"failures", method.failures}};
    for (const auto& [key, spread] : method.numbers) {
      object[key] = {{"mean", spread.mean}, {"deviation", nullptr}};
      if (spread.deviation) object[key]["deviation"] = *spread.deviation;
    }
    for (const auto& [key, value] : method.baseline) object["baseline_" + key] = value;
    list.push_back(std::move(object));
  }
  return list;
}

std::string comparison_picture(const std::string& title,
                               const std::vector<ComparedMethod>& methods) {
  std::vector<Chart> charts;
  std::vector<std::string> names;
  for (const std::string& task : tasks_of(methods)) {
    // A method has one colour in all rows.
    std::vector<const ComparedMethod*> its_methods;
    for (const ComparedMethod& method : methods) {
      if (method.task == task) its_methods.push_back(&method);
    }
    if (names.empty()) {
      for (const ComparedMethod* method : its_methods) names.push_back(method->method);
    }
    charts.push_back(loss_over_time(task, its_methods));
    charts.push_back(points_over(task, its_methods, "peak_memory_bytes"));
    charts.push_back(points_over(task, its_methods, "tokens_per_s"));
  }
  return svg_document(title, names, charts, /*columns=*/3);
}

}  // namespace performer
