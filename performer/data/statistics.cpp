// SPDX-License-Identifier: Apache-2.0
#include "performer/data/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "favor/check.h"

namespace performer {

using nlohmann::ordered_json;

SetStatistics::SetStatistics(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), counts_(static_cast<size_t>(tokenizer.num_letters()), 0) {}

void SetStatistics::add(std::span<const uint8_t> tokens) {
  // Four tables: repeats of a letter would otherwise wait for each other's count.
  std::array<std::array<uint32_t, 256>, 4> seen{};
  size_t i = 0;
  for (; i + 4 <= tokens.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) ++seen[j][tokens[i + j]];
  }
  for (; i < tokens.size(); ++i) ++seen[0][tokens[i]];
  int64_t rare = 0;
  for (size_t id = 0; id < counts_.size(); ++id) {
    const int64_t count = int64_t{seen[0][id]} + seen[1][id] + seen[2][id] + seen[3][id];
    counts_[id] += count;
    if (static_cast<int64_t>(id) >= tokenizer_.num_standard()) rare += count;
  }
  with_rare_ += rare > 0 ? 1 : 0;
  lengths_.push_back(static_cast<uint32_t>(tokens.size()));
}

void SetStatistics::add(const SetStatistics& other) {
  lengths_.insert(lengths_.end(), other.lengths_.begin(), other.lengths_.end());
  for (size_t id = 0; id < counts_.size(); ++id) counts_[id] += other.counts_[id];
  with_rare_ += other.with_rare_;
}

ordered_json SetStatistics::to_json() const {
  const auto count = static_cast<int64_t>(lengths_.size());
  ordered_json object = {{"sequences", count}};
  object["residues"] = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  if (count > 0) {
    std::vector<uint32_t> sorted = lengths_;
    std::sort(sorted.begin(), sorted.end());
    const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
    const double mean = total / static_cast<double>(count);
    double squares = 0;
    for (const uint32_t length : sorted) squares += (length - mean) * (length - mean);
    object["min"] = sorted.front();
    object["max"] = sorted.back();
    object["mean"] = mean;
    object["std"] = std::sqrt(squares / static_cast<double>(count));
    const size_t half = sorted.size() / 2;
    object["median"] = sorted.size() % 2 == 1
                           ? double{1} * sorted[half]
                           : 0.5 * (double{1} * sorted[half - 1] + double{1} * sorted[half]);
  }
  ordered_json letters = ordered_json::object();
  int64_t rare = 0;
  for (size_t id = 0; id < counts_.size(); ++id) {
    const auto token = static_cast<uint8_t>(id);
    letters[tokenizer_.decode(std::span(&token, 1))] = counts_[id];
    if (static_cast<int64_t>(id) >= tokenizer_.num_standard()) rare += counts_[id];
  }
  object["letters"] = letters;
  object["rare_letters"] = rare;
  object["sequences_with_rare"] = with_rare_;
  return object;
}

std::string statistics_table(const ordered_json& sets) {
  std::string text;
  std::array<char, 200> line{};
  const auto print = [&](const char* format, const auto&... values) {
    std::snprintf(line.data(), line.size(), format, values...);
    text += line.data();
  };
  print("%-8s %11s %13s %6s %8s %8s %8s %8s %12s\n", "set", "sequences", "residues", "min",
        "median", "mean", "std", "max", "rare letters");
  for (const auto& [name, set] : sets.items()) {
    print("%-8s %11lld %13lld %6.0f %8.1f %8.2f %8.2f %8.0f %12lld\n", name.c_str(),
          set["sequences"].get<long long>(), set["residues"].get<long long>(),
          set.value("min", 0.0), set.value("median", 0.0), set.value("mean", 0.0),
          set.value("std", 0.0), set.value("max", 0.0), set["rare_letters"].get<long long>());
  }
  text += "\nletters, %";
  for (const auto& [name, set] : sets.items()) print(" %8s", name.c_str());
  text += "\n";
  for (const auto& [letter, unused] : sets.front()["letters"].items()) {
    print("%-10s", letter.c_str());
    for (const auto& [name, set] : sets.items()) {
      const auto residues = set["residues"].get<double>();
      print(" %8.4f", residues > 0 ? 100 * set["letters"][letter].get<double>() / residues : 0.0);
    }
    text += "\n";
  }
  return text;
}

}  // namespace performer
