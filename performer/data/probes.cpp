// SPDX-License-Identifier: Apache-2.0
#include "performer/data/probes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "favor/random.h"

namespace performer {
namespace {

constexpr double kPower = 0.01;

class ProbeSet : public ExampleSet {
 public:
  explicit ProbeSet(const ProbeOptions& options)
      : options_(options), vocabulary_(symbol_vocabulary(options.num_symbols)) {
    if (options_.kind == ProbeKind::kCopy) options_.length -= 1 - options_.length % 2;
  }

  int64_t size() const override { return options_.num_examples; }
  int64_t length(int64_t) const override { return options_.length; }
  int64_t fingerprint() const override {
    const Example first = example(0, 0);
    uint64_t hash = sequence_hash("performer/probes", static_cast<uint64_t>(size()));
    for (const int64_t token : first.tokens) hash = sequence_hash("", hash ^ uint64_t(token));
    return static_cast<int64_t>(hash >> 1);
  }

  Example example(int64_t i, int64_t epoch) const override {
    const auto key =
        sequence_hash("performer/probes", options_.seed) + static_cast<uint64_t>(options_.kind);
    favor::RandomStream random(key, static_cast<uint64_t>(i),
                               options_.fresh ? static_cast<uint32_t>(epoch) : 0);
    if (options_.kind == ProbeKind::kCopy) return copy(random);
    return options_.kind == ProbeKind::kInduction ? induction(random) : recall(random);
  }

 private:
  Example blank(favor::RandomStream& random) const {
    Example example;
    for (int64_t t = 0; t < options_.length; ++t) {
      example.tokens.push_back(static_cast<int64_t>(random.below(options_.num_symbols)));
    }
    example.targets.assign(example.tokens.size(), -1);
    return example;
  }

  Example copy(favor::RandomStream& random) const {
    Example example = blank(random);
    const size_t n = example.tokens.size() / 2;
    // Places 1 to n, then the same from n + 2 on; the last symbol is only a target.
    example.tokens[0] = vocabulary_->bos();
    for (size_t i = 1; i <= n; ++i) {
      example.targets[n + i] = example.tokens[i];
      if (n + 1 + i < example.tokens.size()) example.tokens[n + 1 + i] = example.tokens[i];
    }
    example.tokens[n + 1] = vocabulary_->eos();
    return example;
  }

  Example induction(favor::RandomStream& random) const {
    Example example = blank(random);
    const size_t last = example.tokens.size() - 1;
    example.tokens[0] = vocabulary_->bos();
    // Something follows the marker before it comes again.
    const size_t place = 1 + random.below(last - 2);
    example.tokens[place] = example.tokens[last] = vocabulary_->eos();
    example.targets[last] = example.tokens[place + 1];
    return example;
  }

  Example recall(favor::RandomStream& random) const {
    Example example = blank(random);
    const int64_t pairs = options_.num_pairs, keys = options_.num_symbols / 2;
    std::vector<int64_t> order(static_cast<size_t>(keys));
    std::iota(order.begin(), order.end(), int64_t{0});
    // Slots of two places for the queries, without replacement: exponential races have the odds
    // of drawing one after another.
    const int64_t slots = (options_.length - 2 * pairs) / 2;
    std::vector<std::pair<double, int64_t>> race;
    for (int64_t g = 0; g < slots; ++g) {
      const double weight = std::pow(double(g + 1), kPower - 1);
      race.emplace_back(-std::log(1 - random.uniform()) / weight, g);
    }
    std::partial_sort(race.begin(), race.begin() + pairs, race.end());
    for (int64_t p = 0; p < pairs; ++p) {
      const auto at = static_cast<size_t>(p);
      std::swap(order[at], order[at + random.below(static_cast<uint64_t>(keys - p))]);
      const int64_t value = keys + static_cast<int64_t>(random.below(options_.num_symbols - keys));
      example.tokens[2 * at] = order[at];
      example.tokens[2 * at + 1] = value;
      const auto query = static_cast<size_t>(2 * pairs + 2 * race[at].second);
      example.tokens[query] = order[at];
      example.targets[query] = value;
    }
    return example;
  }

  ProbeOptions options_;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

}  // namespace

void ProbeOptions::check() const {
  FAVOR_CHECK(num_symbols >= 2 && num_symbols <= 1000000, "num_symbols is ", num_symbols,
              ", expected 2 to 1000000");
  const int64_t least = kind == ProbeKind::kRecall ? 4 * num_pairs : 5;
  FAVOR_CHECK(num_pairs >= 1, "num_pairs is ", num_pairs, ", expected at least 1");
  FAVOR_CHECK(kind != ProbeKind::kRecall || num_pairs <= num_symbols / 2, "num_pairs is ",
              num_pairs, ", expected at most ", num_symbols / 2, " (half of num_symbols are keys)");
  FAVOR_CHECK(length >= least, "length is ", length, ", expected at least ", least,
              kind == ProbeKind::kRecall ? " (pairs, and as many places to ask for them)" : "");
}

std::shared_ptr<const Vocabulary> symbol_vocabulary(int64_t num_symbols) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < num_symbols; ++i) names.push_back(favor::message("s", i));
  return word_vocabulary("symbols", std::move(names));
}

std::shared_ptr<const ExampleSet> make_probe(const ProbeOptions& options) {
  options.check();
  return std::make_shared<ProbeSet>(options);
}

}  // namespace performer
