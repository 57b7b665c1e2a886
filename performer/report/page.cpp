// SPDX-License-Identifier: Apache-2.0
#include "performer/report/page.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/train/metrics.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Lines = std::vector<json>;

// Colours and sizes of the page; chart_style follows.
constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 0 auto;
       max-width: 1200px; padding: 16px 24px 48px; }
h1 { font-size: 24px; margin: 8px 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px; text-align: right; border-bottom: 1px solid #ddd; }
th { font-weight: 600; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } .note { color: #666; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
          gap: 16px; }
svg { width: 100%; height: auto; }
.key { display: inline-block; margin-right: 18px; }
.key i { display: inline-block; width: 22px; height: 0; border-top: 3px solid; margin-right: 6px;
         vertical-align: middle; }
figure { margin: 0; } figure img { max-width: 100%; } figcaption { color: #666; font-size: 13px; }
code { font-size: 13px; } footer { color: #666; margin-top: 40px; font-size: 13px; }
)";

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// A cell of the final table; missing values are a dash.
std::string cell(const std::optional<double>& value, const char* format, double factor = 1) {
  return "<td>" + (value ? number(format, factor * *value) : std::string("-")) + "</td>";
}

std::optional<double> value_of(const json& line, const std::string& key) {
  if (!line.contains(key) || !line[key].is_number()) return std::nullopt;
  return line[key].get<double>();
}

std::optional<double> last_value(const Lines& lines, const std::string& key) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (const auto value = value_of(*line, key)) return value;
  }
  return std::nullopt;
}

std::optional<double> median(const Lines& lines, const std::string& key) {
  std::vector<double> values;
  for (const json& line : lines) {
    if (const auto value = value_of(line, key)) values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The evaluation with the smallest loss, or null.
json best_of(const Lines& evaluations) {
  json best;
  for (const json& line : evaluations) {
    const auto loss = value_of(line, "loss");
    if (loss && (best.is_null() || *loss < best["loss"].get<double>())) best = line;
  }
  return best;
}

std::string key_of_colors(const std::vector<RunRecord>& runs) {
  std::string html = "<p>";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += "<span class=\"key\"><i style=\"border-color:" + series_color(i) + "\"></i>" +
            escape_html(runs[i].name) + "</span>";
  }
  return html + "</p>\n";
}

std::string final_table(const std::vector<RunRecord>& runs) {
  std::vector<std::string> splits;
  for (const RunRecord& run : runs) {
    for (const std::string& split : run.splits()) {
      if (std::find(splits.begin(), splits.end(), split) == splits.end()) splits.push_back(split);
    }
  }
  std::string html =
      "<h2>Result</h2>\n<div class=\"wide\"><table>\n<tr><th>run</th><th>steps</th>"
      "<th>tokens, M</th><th>time</th><th>tokens/s</th><th>peak memory, MB</th>";
  for (const std::string& split : splits) {
    for (const char* what : {"perplexity", "accuracy, %"}) {
      html += "<th>" + escape_html(split) + "<br>" + what + "</th>";
    }
  }
  html += "</tr>\n";
  const auto scores = [](const json& line, const std::string& prefix) {
    const json none = json::object();
    const json& from = line.is_null() ? none : line;
    return cell(value_of(from, prefix + "perplexity"), "%.3f") +
           cell(value_of(from, prefix + "accuracy"), "%.2f", 100);
  };
  for (const RunRecord& run : runs) {
    const auto elapsed = last_value(run.training, "elapsed_s");
    html += "<tr><td>" + escape_html(run.name) + "</td>" +
            cell(last_value(run.training, "step"), "%.0f") +
            cell(last_value(run.training, "tokens"), "%.2f", 1e-6) + "<td>" +
            (elapsed ? format_duration(*elapsed) : "-") + "</td>" +
            cell(median(run.training, "tokens_per_s"), "%.0f") +
            cell(last_value(run.training, "peak_memory_bytes"), "%.0f", 1e-6);
    for (const std::string& split : splits) {
      html += scores(best_of(run.evaluations_of(split)), "");
    }
    html += "</tr>\n";
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    // Runs on the same data share a baseline: it is shown once.
    const auto level = [&](const RunRecord& run, const std::string& split) {
      return value_of(best_of(run.evaluations_of(split)).is_null()
                          ? json::object()
                          : best_of(run.evaluations_of(split)),
                      "baseline_perplexity");
    };
    const bool shown =
        std::any_of(runs.begin(), runs.begin() + std::ptrdiff_t(i), [&](const RunRecord& earlier) {
          return std::all_of(splits.begin(), splits.end(), [&](const std::string& split) {
            return level(earlier, split) == level(runs[i], split);
          });
        });
    if (shown || runs[i].evaluations.empty()) continue;
    html += "<tr class=\"note\"><td>letter frequencies" +
            (i > 0 ? " (" + escape_html(runs[i].name) + ")" : "") + "</td>" +
            "<td></td><td></td><td></td><td></td><td></td>";
    for (const std::string& split : splits) {
      html += scores(best_of(runs[i].evaluations_of(split)), "baseline_");
    }
    html += "</tr>\n";
  }
  return html +
         "</table></div>\n<p class=\"note\">Of each set the evaluation with the smallest loss; "
         "tokens/s is the median over the run.</p>\n";
}

/// One series per run.
Chart chart_of(const std::vector<RunRecord>& runs, const std::string& title, const std::string& x,
               const std::string& x_label, const std::string& y, const std::string& y_label,
               double x_factor = 1) {
  Chart chart{title, x_label, y_label, false, {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    Series series{runs[i].name, i, false, false, RunRecord::points(runs[i].training, x, y)};
    for (Point& p : series.points) p.x *= x_factor;
    chart.series.push_back(std::move(series));
  }
  return chart;
}

/// Loss of training, pale, and of every evaluated set, over steps or over minutes.
Chart loss_chart(const std::vector<RunRecord>& runs, bool over_time) {
  Chart chart{over_time ? "Loss over time" : "Loss over steps",
              over_time ? "minutes" : "optimiser step",
              "nats per target",
              false,
              {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    std::vector<Point> training = RunRecord::points(run.training, "step", "loss");
    if (over_time) {
      training = RunRecord::points(run.training, "elapsed_s", "loss");
      for (Point& p : training) p.x /= 60;
    }
    chart.series.push_back({run.name + ", training", i, true, false, training});
    for (const std::string& split : run.splits()) {
      const Lines lines = run.evaluations_of(split);
      std::vector<Point> points = RunRecord::points(lines, "step", "loss");
      if (points.size() < 2 && split == "test") continue;  // a single number: in the table
      std::vector<Point> baseline = RunRecord::points(lines, "step", "baseline_loss");
      if (over_time) {
        for (std::vector<Point>* line : {&points, &baseline}) {
          *line = run.over_seconds(std::move(*line));
          for (Point& p : *line) p.x /= 60;
        }
      }
      chart.series.push_back({run.name + ", " + split, i, false, false, points});
      chart.series.push_back(
          {run.name + ", " + split + ", letter frequencies", i, false, true, baseline});
    }
  }
  return chart;
}

Chart accuracy_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Accuracy of evaluations", "optimiser step", "%", false, {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& split : runs[i].splits()) {
      const Lines lines = runs[i].evaluations_of(split);
      std::vector<Point> points = RunRecord::points(lines, "step", "accuracy");
      if (points.size() < 2 && split == "test") continue;
      for (Point& p : points) p.y *= 100;
      chart.series.push_back({runs[i].name + ", " + split, i, false, false, points});
    }
  }
  return chart;
}

std::string charts(const std::vector<Chart>& all) {
  std::string html = "<div class=\"charts\">\n";
  for (const Chart& chart : all) {
    if (chart.has_points()) html += to_svg(chart);
  }
  return html + "</div>\n";
}

/// A chart per diagnostic, a line per layer, of each run that has any.
std::string layer_charts(const std::vector<RunRecord>& runs) {
  std::string html;
  for (const RunRecord& run : runs) {
    std::vector<std::string> keys;
    std::set<int64_t> layers;
    for (const json& line : run.layers) {
      layers.insert(line["layer"].get<int64_t>());
      for (const auto& [key, value] : line.items()) {
        if (key == "step" || key == "layer" || !value.is_number()) continue;
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
      }
    }
    if (keys.empty()) continue;
    std::vector<Chart> all;
    for (const std::string& key : keys) {
      std::string label = key;
      std::replace(label.begin(), label.end(), '_', ' ');
      Chart chart{label, "optimiser step", label, false, {}};
      for (const int64_t layer : layers) {
        Lines lines;
        for (const json& line : run.layers) {
          if (line["layer"] == layer) lines.push_back(line);
        }
        chart.series.push_back({favor::message("layer ", layer), size_t(layer), false, false,
                                RunRecord::points(lines, "step", key)});
      }
      all.push_back(std::move(chart));
    }
    html += "<h2>Layers of " + escape_html(run.name) + "</h2>\n<p>";
    for (const int64_t layer : layers) {
      html += favor::message("<span class=\"key\"><i style=\"border-color:",
                             series_color(size_t(layer)), "\"></i>layer ", layer, "</span>");
    }
    html += "</p>\n" + charts(all);
  }
  return html;
}

std::string shown(const json& config, const std::string& key) {
  if (!config.contains(key)) return "-";
  return config[key].is_string() ? config[key].get<std::string>() : config[key].dump();
}

std::string configurations(const std::vector<RunRecord>& runs) {
  std::vector<std::string> keys;
  for (const RunRecord& run : runs) {
    for (const auto& [key, value] : run.config.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  const auto differs = [&](const std::string& key) {
    return std::any_of(runs.begin(), runs.end(), [&](const RunRecord& run) {
      return shown(run.config, key) != shown(runs.front().config, key);
    });
  };
  const auto table = [&](bool all) {
    std::string html = "<div class=\"wide\"><table>\n<tr><th>option</th>";
    for (const RunRecord& run : runs) html += "<th>" + escape_html(run.name) + "</th>";
    html += "</tr>\n";
    for (const std::string& key : keys) {
      if (!all && !differs(key)) continue;
      html += "<tr><td><code>" + escape_html(key) + "</code></td>";
      for (const RunRecord& run : runs) {
        html += "<td>" + escape_html(shown(run.config, key)) + "</td>";
      }
      html += "</tr>\n";
    }
    return html + "</table></div>\n";
  };
  std::string html = "<h2>Configuration</h2>\n";
  if (runs.size() > 1) {
    const bool any = std::any_of(keys.begin(), keys.end(), differs);
    html += any ? "<p>Where the runs differ:</p>\n" + table(false)
                : std::string("<p>The runs do not differ.</p>\n");
  }
  html += "<details><summary>All options</summary>\n" + table(true) + "</details>\n";
  for (const RunRecord& run : runs) {
    if (!run.run.is_object()) continue;
    html += "<p class=\"note\">" + escape_html(run.name) + ": version " +
            escape_html(shown(run.run, "version")) + " (" +
            escape_html(shown(run.run, "revision")) + "), <code>" +
            escape_html(shown(run.run, "command_line")) + "</code></p>\n";
  }
  return html;
}

std::string pictures(const std::vector<RunRecord>& runs) {
  std::string html;
  for (const RunRecord& run : runs) {
    for (const std::string& path : run.pictures) {
      std::ifstream in(path, std::ios::binary);
      std::ostringstream bytes;
      bytes << in.rdbuf();
      if (!in) {
        throw std::runtime_error(favor::message(path, ": cannot be read: ", std::strerror(errno)));
      }
      const std::string type = fs::path(path).extension() == ".svg" ? "svg+xml" : "png";
      html += "<figure><img alt=\"" + escape_html(path) + "\" src=\"data:image/" + type +
              ";base64," + base64(bytes.str()) + "\"><figcaption>" + escape_html(path) +
              "</figcaption></figure>\n";
    }
  }
  return html.empty() ? "" : "<h2>Attention</h2>\n<div class=\"charts\">\n" + html + "</div>\n";
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs, const std::string& footer) {
  std::string title =
      runs.size() == 1 ? runs.front().name : favor::message("Comparison of ", runs.size(), " runs");
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      escape_html(title) + "</title>\n<style>" + kStyle + chart_style() +
      "</style>\n</head>\n<body>\n<h1>" + escape_html(title) + "</h1>\n";
  html += key_of_colors(runs);
  for (const RunRecord& run : runs) {
    if (run.damaged_lines == 0) continue;
    html += favor::message("<p class=\"note\">", escape_html(run.name), ": ", run.damaged_lines,
                           " lines of metrics.jsonl are damaged and left out.</p>\n");
  }
  html += final_table(runs);
  html +=
      "<h2>Curves</h2>\n<p class=\"note\">Pale: training. Strong: evaluations. Dashed: letter "
      "frequencies of the training set, on the same targets.</p>\n";
  html += charts({loss_chart(runs, false), loss_chart(runs, true), accuracy_chart(runs)});
  html += "<h2>Course, speed and memory</h2>\n";
  Chart speed = chart_of(runs, "Speed", "step", "optimiser step", "tokens_per_s", "tokens/s");
  speed.y_from_zero = true;
  Chart memory = chart_of(runs, "Peak memory", "step", "optimiser step", "peak_memory_bytes", "MB");
  for (Series& series : memory.series) {
    for (Point& p : series.points) p.y *= 1e-6;
  }
  memory.y_from_zero = true;
  html += charts({speed, memory,
                  chart_of(runs, "Learning rate", "step", "optimiser step", "lr", "rate"),
                  chart_of(runs, "Gradient norm before clipping", "step", "optimiser step",
                           "grad_norm", "norm")});
  html += layer_charts(runs) + pictures(runs) + configurations(runs);
  return html + "<footer>" + escape_html(footer) + "</footer>\n</body>\n</html>\n";
}

std::string base64(const std::string& bytes) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= count ? kLetters[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace performer
