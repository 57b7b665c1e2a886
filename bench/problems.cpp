// SPDX-License-Identifier: Apache-2.0
#include "bench/problems.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>

#include "favor/check.h"
#include "favor/words.h"

namespace favor::bench {
namespace {

constexpr Word<Op> kOps[] = {{Op::kBidirectional, "bidirectional"},
                             {Op::kCausal, "causal"},
                             {Op::kDecodeStep, "decode_step"}};
constexpr Word<Pass> kPasses[] = {{Pass::kForward, "forward"}, {Pass::kBackward, "backward"}};

constexpr Word<ElementType> kTypes[] = {{ElementType::kFloat32, "float32"},
                                        {ElementType::kBfloat16, "bfloat16"},
                                        {ElementType::kFloat16, "float16"}};

constexpr std::string_view kIdentity = "-identity";
constexpr std::string_view kHadamard = "-hadamard";
constexpr std::string_view kExact = "exact";

Map map_from_string(std::string_view word) {
  Map map;
  if (word == kExact) {
    map.exact = true;
    map.projected = false;
    return map;
  }
  if (word.ends_with(kIdentity)) {
    map.projected = false;
    word.remove_suffix(kIdentity.size());
  } else if (word.ends_with(kHadamard)) {
    map.structured = true;
    word.remove_suffix(kHadamard.size());
  }
  map.kind = feature_map_from_string(word);
  FAVOR_CHECK(map.projected || map.kind == FeatureMapKind::kRelu, "map is '", word, kIdentity,
              "', expected a generalised map before ", kIdentity);
  return map;
}

template <class T>
T number(const std::string& key, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  FAVOR_CHECK(result.ec == std::errc() && result.ptr == end && value > 0, key, " is '", text,
              "', expected a number above 0");
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

void set_field(Shape& shape, const std::string& key, const std::string& value, int all_threads) {
  const std::map<std::string, int64_t*> sizes{{"B", &shape.B},
                                              {"H", &shape.H},
                                              {"L", &shape.L},
                                              {"S", &shape.S},
                                              {"D", &shape.D},
                                              {"E", &shape.E},
                                              {"M", &shape.M},
                                              {"window", &shape.window},
                                              {"sinks", &shape.sinks},
                                              {"period", &shape.period},
                                              {"position", &shape.position}};
  if (const auto size = sizes.find(key); size != sizes.end()) {
    *size->second = number<int64_t>(key, value);
  } else if (key == "norm") {
    shape.norm = number<double>(key, value);
    FAVOR_CHECK(shape.norm <= 8, "norm is ", value, ", expected at most 8");
  } else if (key == "op") {
    for (const std::string& word : split(value)) shape.ops.push_back(value_of(kOps, word, "op"));
  } else if (key == "map") {
    for (const std::string& word : split(value)) shape.maps.push_back(map_from_string(word));
  } else if (key == "dtype") {
    shape.dtype = value_of(kTypes, value, "dtype");
  } else if (key == "threads") {
    shape.threads.clear();
    for (const std::string& word : split(value)) {
      const int threads = word == "all" ? all_threads : number<int>(key, word);
      // On one core "1,all" is one problem, not two.
      if (std::count(shape.threads.begin(), shape.threads.end(), threads) == 0) {
        shape.threads.push_back(threads);
      }
    }
  } else {
    throw Error(message("key is '", key,
                        "', expected op, map, dtype, threads, B, H, L, S, D, E, M, window, "
                        "sinks, period, position, norm"));
  }
}

Shape parse(const std::string& line, int all_threads) {
  Shape shape;
  std::istringstream words(line);
  words >> shape.name;
  FAVOR_CHECK(shape.name.find('=') == std::string::npos, "the line starts with '", shape.name,
              "', expected a name");
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    FAVOR_CHECK(equals != std::string::npos, "found '", word, "', expected key=value");
    set_field(shape, word.substr(0, equals), word.substr(equals + 1), all_threads);
  }
  if (shape.S == 0) shape.S = shape.L;
  FAVOR_CHECK(shape.dtype == ElementType::kFloat32 ||
                  std::count(shape.ops.begin(), shape.ops.end(), Op::kDecodeStep) == 0,
              "dtype is ", to_string(shape.dtype), ", expected float32 (op decode_step)");
  FAVOR_CHECK(!shape.ops.empty() && !shape.maps.empty(), shape.name, " lacks op= or map=");
  FAVOR_CHECK(shape.period == 0 || (shape.L == shape.S && shape.L % shape.period == 0 &&
                                    shape.L > shape.period && shape.window == 0),
              "period is ", shape.period, ", expected a part of L = S, and no window");
  const bool decodes = std::count(shape.ops.begin(), shape.ops.end(), Op::kDecodeStep) > 0;
  FAVOR_CHECK(shape.position % kPrefixTokens == 0 && (shape.position == 0 || decodes),
              "position is ", shape.position, ", expected a multiple of ", kPrefixTokens,
              " with op=decode_step");
  for (const Map& map : shape.maps) {
    FAVOR_CHECK(!decodes || (!map.exact && shape.window == 0 && shape.period == 0), shape.name,
                " has op=decode_step, expected no map=exact, no window and no period");
  }
  return shape;
}

}  // namespace

std::string to_string(Op op) {
  return word_of(kOps, op);
}
std::string to_string(Pass pass) {
  return word_of(kPasses, pass);
}
std::string to_string(ElementType type) {
  return word_of(kTypes, type);
}
std::string to_string(Map map) {
  if (map.exact) return std::string(kExact);
  return favor::to_string(map.kind) + std::string(!map.projected   ? kIdentity
                                                  : map.structured ? kHadamard
                                                                   : "");
}

std::vector<Shape> read_shapes(const std::string& path, int all_threads) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(message(path, ": cannot be opened"));
  std::vector<Shape> shapes;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos || line[start] == '#') continue;
    try {
      shapes.push_back(parse(line, all_threads));
    } catch (const Error& error) {
      throw Error(message(path, ":", number, ": ", error.what()));
    }
  }
  FAVOR_CHECK(!shapes.empty(), path, ": no problem found");
  return shapes;
}

std::string label(const Shape& shape, Op op, Pass pass, Map map, int threads) {
  return message(to_string(op), "/", to_string(pass), "/", to_string(map), "/", shape.name,
                 "/threads", threads);
}

}  // namespace favor::bench
