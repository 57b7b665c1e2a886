// SPDX-License-Identifier: Apache-2.0
#include "performer/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace performer {
namespace {

constexpr double kWidth = 560, kHeight = 300;
constexpr double kLeft = 58, kRight = 12, kTop = 28, kBottom = 42;
constexpr size_t kMostPoints = 600;

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// An axis: values to picture coordinates.
struct Axis {
  double low, high, from, to;

  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

Axis axis_over(double low, double high, double from, double to) {
  if (high <= low) {
    const double margin = low == 0 ? 1 : 0.05 * std::abs(low);
    low -= margin;
    high += margin;
  }
  return {low, high, from, to};
}

std::vector<Point> drawn_points(const std::vector<Point>& points) {
  std::vector<Point> finite;
  for (const Point& p : points) {
    if (std::isfinite(p.x) && std::isfinite(p.y)) finite.push_back(p);
  }
  if (finite.size() <= kMostPoints) return finite;
  std::vector<Point> means;
  for (size_t group = 0; group < kMostPoints; ++group) {
    const size_t begin = group * finite.size() / kMostPoints;
    const size_t end = (group + 1) * finite.size() / kMostPoints;
    Point mean;
    for (size_t i = begin; i < end; ++i) {
      mean.x += finite[i].x / double(end - begin);
      mean.y += finite[i].y / double(end - begin);
    }
    means.push_back(mean);
  }
  return means;
}

std::string mark_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return number("%.4gM", value / 1e6);
  if (size >= 1e4) return number("%.4gk", value / 1e3);
  return number("%.6g", value);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text,
                    const char* more = "") {
  return "<text x=\"" + number("%.1f", x) + "\" y=\"" + number("%.1f", y) + "\" text-anchor=\"" +
         anchor + "\"" + more + ">" + escape_html(text) + "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return std::string("<line class=\"") + kind + "\" x1=\"" + number("%.1f", x1) + "\" y1=\"" +
         number("%.1f", y1) + "\" x2=\"" + number("%.1f", x2) + "\" y2=\"" + number("%.1f", y2) +
         "\"/>";
}

std::string drawn_series(const Series& series, const Axis& x, const Axis& y) {
  const std::vector<Point> points = drawn_points(series.points);
  if (points.empty()) return "";
  const std::string color = series_color(series.color);
  const std::string title = "<title>" + escape_html(series.name) + "</title>";
  std::string svg;
  std::string path;
  for (const Point& p : points) {
    char step[64];
    std::snprintf(step, sizeof step, "%c%.1f %.1f", path.empty() ? 'M' : 'L', x.at(p.x), y.at(p.y));
    path += step;
  }
  svg += "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + color + "\"" +
         (series.faint    ? " stroke-width=\"1\" opacity=\"0.35\""
          : series.dashed ? " stroke-width=\"1.2\" stroke-dasharray=\"5 4\""
                          : " stroke-width=\"2\"") +
         ">" + title + "</path>";
  for (const Point& p : points) {
    const std::string stroke = "\" fill=\"none\" stroke=\"" + color + "\" stroke-width=\"1.2\"/>";
    const auto bar = [&](double x1, double y1, double x2, double y2) {
      svg += "<path d=\"M" + number("%.1f", x1) + " " + number("%.1f", y1) + "L" +
             number("%.1f", x2) + " " + number("%.1f", y2) + stroke;
    };
    if (p.x_error > 0) bar(x.at(p.x - p.x_error), y.at(p.y), x.at(p.x + p.x_error), y.at(p.y));
    if (p.y_error > 0) bar(x.at(p.x), y.at(p.y - p.y_error), x.at(p.x), y.at(p.y + p.y_error));
  }
  // A few points are seen as such; a line through one alone would be invisible.
  if (!series.faint && !series.dashed && points.size() <= 40) {
    for (const Point& p : points) {
      svg += "<circle cx=\"" + number("%.1f", x.at(p.x)) + "\" cy=\"" + number("%.1f", y.at(p.y)) +
             "\" r=\"2.4\" fill=\"" + color + "\">" + title + "</circle>";
    }
  }
  return svg + "\n";
}

}  // namespace

bool Chart::has_points() const {
  for (const Series& one : series) {
    for (const Point& p : one.points) {
      if (std::isfinite(p.x) && std::isfinite(p.y)) return true;
    }
  }
  return false;
}

std::string series_color(size_t index) {
  // Okabe and Ito's colours, the yellow darkened for a white page.
  static const char* const kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                        "#56b4e9", "#e69f00", "#000000", "#8a7a00"};
  return kColors[index % std::size(kColors)];
}

std::vector<double> axis_marks(double low, double high, int most) {
  const double rough = (high - low) / std::max(1, most);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  std::vector<double> marks;
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    const double step = factor * power;
    const double first = std::ceil(low / step - 1e-9);
    const double last = std::floor(high / step + 1e-9);
    if (last - first + 1 > most && factor < 20) continue;
    marks.clear();
    for (double i = first; i <= last; ++i) marks.push_back(i * step + 0.0);  // -0 is 0
    if (!marks.empty()) return marks;
  }
  return {0.5 * (low + high)};
}

std::string to_svg(const Chart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity, x_high = -kInfinity, y_low = kInfinity, y_high = -kInfinity;
  for (const Series& series : chart.series) {
    for (const Point& p : drawn_points(series.points)) {
      x_low = std::min(x_low, p.x - p.x_error);
      x_high = std::max(x_high, p.x + p.x_error);
      y_low = std::min(y_low, p.y - p.y_error);
      y_high = std::max(y_high, p.y + p.y_error);
    }
  }
  if (x_low > x_high) x_low = y_low = 0, x_high = y_high = 1;
  const double margin = 0.04 * (y_high - y_low);
  y_low = chart.y_from_zero ? std::min(0.0, y_low) : y_low - margin;
  const Axis x = axis_over(x_low, x_high, kLeft, kWidth - kRight);
  const Axis y = axis_over(y_low, y_high + margin, kHeight - kBottom, kTop);

  std::string svg = "<svg viewBox=\"0 0 " + number("%.0f", kWidth) + " " + number("%.0f", kHeight) +
                    "\" role=\"img\" aria-label=\"" + escape_html(chart.title) + "\">\n";
  svg += text_at(kLeft, 17, "start", chart.title, " class=\"title\"") + "\n";
  for (const double mark : axis_marks(y.low, y.high, 6)) {
    svg += line(kLeft, y.at(mark), kWidth - kRight, y.at(mark), "grid");
    svg += text_at(kLeft - 6, y.at(mark) + 4, "end", mark_text(mark)) + "\n";
  }
  for (const double mark : axis_marks(x.low, x.high, 7)) {
    svg += line(x.at(mark), kHeight - kBottom, x.at(mark), kHeight - kBottom + 4, "axis");
    svg += text_at(x.at(mark), kHeight - kBottom + 17, "middle", mark_text(mark)) + "\n";
  }
  svg += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis") + "\n";
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", chart.x_label) + "\n";
  svg += text_at(0, 0, "middle", chart.y_label,
                 (" transform=\"translate(13 " + number("%.0f", (kTop + kHeight - kBottom) / 2) +
                  ") rotate(-90)\"")
                     .c_str()) +
         "\n";
  for (const bool faint : {true, false}) {
    for (const Series& series : chart.series) {
      if (series.faint == faint) svg += drawn_series(series, x, y);
    }
  }
  return svg + "</svg>\n";
}

std::string chart_style() {
  return "svg { font: 12px system-ui, sans-serif; fill: #444; }\n"
         "svg .title { font-size: 14px; font-weight: 600; fill: #1c1c1c; }\n"
         "svg .grid { stroke: #e4e4e4; } svg .axis { stroke: #888; }\n";
}

std::string svg_document(const std::string& title, const std::vector<std::string>& names,
                         const std::vector<Chart>& charts, int columns) {
  constexpr double kGap = 16, kLine = 22;
  const int rows = (int(charts.size()) + columns - 1) / columns;
  const double width = columns * (kWidth + kGap) + kGap;
  // A name takes some seven units a letter; what does not fit goes to the next line.
  std::string key;
  double x = kGap, y = 2 * kLine + kGap;
  for (size_t i = 0; i < names.size(); ++i) {
    const double taken = 46 + 7.0 * double(names[i].size());
    if (x > kGap && x + taken > width) x = kGap, y += kLine;
    key += "<rect x=\"" + number("%.0f", x) + "\" y=\"" + number("%.0f", y - 7) +
           "\" width=\"22\" height=\"3\" fill=\"" + series_color(i) + "\"/>" +
           text_at(x + 28, y, "start", names[i]) + "\n";
    x += taken;
  }
  const double top = y + kGap;
  const double height = top + rows * (kHeight + kGap);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
                    number("%.0f", width) + " " + number("%.0f", height) + "\" width=\"" +
                    number("%.0f", width) + "\" height=\"" + number("%.0f", height) +
                    "\">\n<style>\n" + chart_style() + "</style>\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" +
                    text_at(kGap, kLine + 4, "start", title, " class=\"title\"") + "\n" + key;
  for (size_t i = 0; i < charts.size(); ++i) {
    const double left = kGap + double(i % size_t(columns)) * (kWidth + kGap);
    const double upper = top + double(i / size_t(columns)) * (kHeight + kGap);
    svg += "<svg x=\"" + number("%.0f", left) + "\" y=\"" + number("%.0f", upper) + "\" width=\"" +
           number("%.0f", kWidth) + "\" height=\"" + number("%.0f", kHeight) + "\">\n" +
           to_svg(charts[i]) + "</svg>\n";
  }
  return svg + "</svg>\n";
}

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace performer
