// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "favor/check.h"

namespace performer {
namespace {

constexpr double kPi = 3.14159265358979323846;
// Standard deviation of the angle between two paddles at continuity 1.
constexpr double kBend = 0.35;
constexpr int kPaddleTrials = 12, kPathTrials = 60, kPictureTrials = 200;

struct Point {
  double x = 0, y = 0;
};
Point operator+(Point a, Point b) {
  return {a.x + b.x, a.y + b.y};
}
Point operator-(Point a, Point b) {
  return {a.x - b.x, a.y - b.y};
}
Point operator*(double s, Point a) {
  return {s * a.x, s * a.y};
}
double dot(Point a, Point b) {
  return a.x * b.x + a.y * b.y;
}
double distance(Point a, Point b) {
  return std::sqrt(dot(a - b, a - b));
}

struct Paddle {
  Point from, to;
};

double distance(Point p, const Paddle& paddle) {
  const Point d = paddle.to - paddle.from;
  const double along = std::clamp(dot(p - paddle.from, d) / dot(d, d), 0.0, 1.0);
  return distance(p, paddle.from + along * d);
}

// Paddles are short: their ends and middles stand for them.
double distance(const Paddle& a, const Paddle& b) {
  double least = 1e9;
  for (const double s : {0.0, 0.5, 1.0}) {
    least = std::min({least, distance(a.from + s * (a.to - a.from), b),
                      distance(b.from + s * (b.to - b.from), a)});
  }
  return least;
}

using Path = std::vector<Paddle>;

class Drawing {
 public:
  Drawing(favor::RandomStream& random, const PathfinderOptions& options)
      : random_(random), options_(options) {}

  // False where no room was found.
  bool place(bool connected) {
    paths_.clear();
    dots_.clear();
    // Room for the dots is kept at both ends of both long paths: separate and connected pictures
    // are drawn by the same rule.
    for (int i = 0; i < 2; ++i) {
      if (!add_path(options_.contour_length, /*with_dots=*/true)) return false;
    }
    const Path &first = paths_[0], &second = paths_[1];
    if (connected) {
      dots_ = {first.front().from, first.back().to};
    } else {
      const auto end = [&](const Path& path) {
        return random_.below(2) == 0 ? path.front().from : path.back().to;
      };
      dots_ = {end(first), end(second)};
    }
    for (int64_t i = 0; i < options_.num_distractors; ++i) {
      if (!add_path(options_.distractor_length, /*with_dots=*/false)) return false;
    }
    return true;
  }

  std::vector<uint8_t> render() const {
    const int64_t size = options_.size, samples = options_.antialias;
    std::vector<double> fine(static_cast<size_t>(size * samples * size * samples), 0);
    // All within `radius` of a thing whose points lie within `reach` of `around`.
    const auto shine = [&](const auto& distance_to, Point around, double reach, double radius,
                           double value) {
      const double border = reach + radius + 1;
      const auto low = [&](double c) {
        return std::max<int64_t>(0, static_cast<int64_t>((c - border) * double(samples)));
      };
      const auto high = [&](double c) {
        return std::min<int64_t>(size * samples,
                                 static_cast<int64_t>((c + border + 1) * double(samples)));
      };
      for (int64_t y = low(around.y); y < high(around.y); ++y) {
        for (int64_t x = low(around.x); x < high(around.x); ++x) {
          const Point p{(double(x) + 0.5) / double(samples), (double(y) + 0.5) / double(samples)};
          // How much of the sample is covered, to first order.
          const double cover =
              std::clamp(0.5 + (radius - distance_to(p)) * double(samples), 0.0, 1.0);
          double& there = fine[static_cast<size_t>(y * size * samples + x)];
          there = std::max(there, value * cover);
        }
      }
    };
    for (const Path& path : paths_) {
      for (const Paddle& paddle : path) {
        const Point middle = 0.5 * (paddle.from + paddle.to);
        shine([&](Point p) { return distance(p, paddle); }, middle, options_.paddle_length / 2,
              options_.paddle_thickness / 2, options_.contrast);
      }
    }
    for (const Point& dot_at : dots_) {
      shine([&](Point p) { return distance(p, dot_at); }, dot_at, 0, options_.marker_radius, 1);
    }
    std::vector<uint8_t> pixels(static_cast<size_t>(size * size));
    for (int64_t y = 0; y < size; ++y) {
      for (int64_t x = 0; x < size; ++x) {
        double sum = 0;
        for (int64_t i = 0; i < samples * samples; ++i) {
          sum += fine[static_cast<size_t>((y * samples + i / samples) * size * samples +
                                          x * samples + i % samples)];
        }
        pixels[static_cast<size_t>(y * size + x)] =
            static_cast<uint8_t>(std::lround(255 * sum / double(samples * samples)));
      }
    }
    return pixels;
  }

 private:
  double clearance() const { return options_.padding + options_.paddle_thickness; }

  bool inside(Point p, double room) const {
    const double edge = double(options_.size) - room;
    return p.x >= room && p.y >= room && p.x <= edge && p.y <= edge;
  }

  // Whether a dot at `p` would touch nothing of other paths, their dots included.
  bool dot_is_free(Point p) const {
    const double room = options_.marker_radius + options_.padding / 2;
    if (!inside(p, options_.marker_radius)) return false;
    for (const Point& end : ends_) {
      if (distance(p, end) < options_.marker_radius + room) return false;
    }
    for (const Path& path : paths_) {
      for (const Paddle& paddle : path) {
        if (distance(p, paddle) < room) return false;
      }
    }
    return true;
  }

  bool is_free(const Paddle& paddle, const Path& own) const {
    const double room = options_.padding / 2 + options_.paddle_thickness / 2;
    if (!inside(paddle.from, room) || !inside(paddle.to, room)) return false;
    for (const Path& path : paths_) {
      for (const Paddle& other : path) {
        if (distance(paddle, other) < clearance()) return false;
      }
    }
    // Of its own path all but the paddle before.
    for (size_t i = 0; i + 1 < own.size(); ++i) {
      if (distance(paddle, own[i]) < clearance()) return false;
    }
    const double dot_room = options_.marker_radius + options_.padding / 2;
    for (const Point& end : ends_) {
      if (distance(end, paddle) < dot_room) return false;
    }
    return true;
  }

  bool add_path(int64_t length, bool with_dots) {
    if (paths_.empty()) ends_.clear();
    for (int trial = 0; trial < kPathTrials; ++trial) {
      Path path;
      Point at{random_.uniform() * double(options_.size),
               random_.uniform() * double(options_.size)};
      if (with_dots && paths_.size() == 1 &&
          distance(at, paths_[0].front().from) < options_.seed_distance) {
        continue;
      }
      if (with_dots && !dot_is_free(at)) continue;
      double angle = 2 * kPi * random_.uniform();
      while (std::ssize(path) < length) {
        bool added = false;
        for (int bend = 0; bend < kPaddleTrials && !added; ++bend) {
          const double turned =
              path.empty() ? angle : angle + kBend / options_.continuity * random_.normal();
          const Point direction{std::cos(turned), std::sin(turned)};
          const Point from = path.empty() ? at : at + options_.paddle_margin * direction;
          const Paddle paddle{from, from + options_.paddle_length * direction};
          if (!is_free(paddle, path)) continue;
          path.push_back(paddle);
          at = paddle.to;
          angle = turned;
          added = true;
        }
        if (!added) break;
      }
      if (std::ssize(path) < length || (with_dots && !dot_is_free(at))) continue;
      // A dot covers the last paddles of its own path, but no earlier ones.
      if (with_dots && distance(path.front().from, path.back().to) <
                           2 * options_.marker_radius + options_.padding) {
        continue;
      }
      if (with_dots) {
        ends_.push_back(path.front().from);
        ends_.push_back(path.back().to);
      }
      paths_.push_back(std::move(path));
      return true;
    }
    return false;
  }

  favor::RandomStream& random_;
  const PathfinderOptions& options_;
  std::vector<Path> paths_;
  std::vector<Point> ends_;  // of the long paths: dots may stand there
  std::vector<Point> dots_;
};

class PathfinderSet : public ExampleSet {
 public:
  PathfinderSet(const PathfinderOptions& options, int64_t count, uint64_t seed, int64_t begin)
      : options_(options), count_(count), seed_(seed), begin_(begin) {}
  int64_t size() const override { return count_; }
  int64_t length(int64_t) const override {
    return options_.size * options_.size + (begin_ >= 0 ? 1 : 0);
  }
  Example example(int64_t i, int64_t) const override {
    favor::RandomStream random(sequence_hash("performer/pathfinder", seed_),
                               static_cast<uint64_t>(i));
    const PathfinderImage image = draw_pathfinder(random, options_);
    Example example;
    if (begin_ >= 0) example.tokens.push_back(begin_);
    example.tokens.insert(example.tokens.end(), image.pixels.begin(), image.pixels.end());
    example.label = image.connected ? 1 : 0;
    return example;
  }
  int64_t fingerprint() const override {
    const Example first = example(0, 0);
    uint64_t hash = sequence_hash("performer/pathfinder", static_cast<uint64_t>(count_));
    for (const int64_t token : first.tokens) hash = sequence_hash("", hash ^ uint64_t(token));
    return static_cast<int64_t>(hash >> 1);
  }

 private:
  PathfinderOptions options_;
  int64_t count_;
  uint64_t seed_;
  int64_t begin_;
};

}  // namespace

PathfinderOptions PathfinderOptions::of_size(int64_t size, int64_t contour_length) {
  PathfinderOptions options;
  // 1 at 32 pixels and 2 at 64.
  const double scale = double(size) / 32;
  options.size = size;
  options.contour_length = contour_length;
  options.distractor_length = std::max<int64_t>(1, contour_length / 3);
  options.num_distractors = 20 / options.distractor_length;
  options.paddle_length = 1 + scale;
  options.paddle_thickness = 0.5 * scale;
  options.marker_radius = 0.5 + scale;
  options.seed_distance = 2 + 5 * scale;
  options.continuity = 1 + 0.8 * (scale - 1);
  return options;
}

void PathfinderOptions::check() const {
  FAVOR_CHECK(size >= 16 && size <= 512, "image_size is ", size, ", expected 16 to 512");
  FAVOR_CHECK(contour_length >= 3 && contour_length <= 40, "contour_length is ", contour_length,
              ", expected 3 to 40");
  FAVOR_CHECK(paddle_length > 0 && paddle_margin >= 0 && paddle_thickness > 0 &&
                  marker_radius > 0 && continuity > 0 && padding >= 0 && antialias >= 1,
              "pathfinder: a length is not positive, expected all of them to be");
}

PathfinderImage draw_pathfinder(favor::RandomStream& random, const PathfinderOptions& options) {
  options.check();
  PathfinderImage image;
  image.connected = random.below(2) == 1;
  Drawing drawing(random, options);
  for (int trial = 0; trial < kPictureTrials; ++trial) {
    if (!drawing.place(image.connected)) continue;
    image.pixels = drawing.render();
    return image;
  }
  throw std::runtime_error(favor::message("pathfinder: paths of ", options.contour_length,
                                          " paddles find no room in ", options.size, " x ",
                                          options.size, " pixels, expected shorter ones"));
}

std::shared_ptr<const ExampleSet> pathfinder_set(const PathfinderOptions& options,
                                                 int64_t num_examples, uint64_t seed,
                                                 int64_t begin) {
  options.check();
  return std::make_shared<PathfinderSet>(options, num_examples, seed, begin);
}

}  // namespace performer
