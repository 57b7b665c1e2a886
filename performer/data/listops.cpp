// SPDX-License-Identifier: Apache-2.0
#include "performer/data/listops.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "favor/check.h"

namespace performer {
namespace {

int64_t apply(uint8_t op, std::vector<int64_t>& arguments) {
  switch (op) {
    case kListMin:
      return *std::min_element(arguments.begin(), arguments.end());
    case kListMax:
      return *std::max_element(arguments.begin(), arguments.end());
    case kListSm:
      return std::accumulate(arguments.begin(), arguments.end(), int64_t{0}) % 10;
    default: {
      std::sort(arguments.begin(), arguments.end());
      const size_t half = arguments.size() / 2;
      // Of two in the middle their mean, truncated.
      return arguments.size() % 2 ? arguments[half] : (arguments[half - 1] + arguments[half]) / 2;
    }
  }
}

class Drawing {
 public:
  Drawing(favor::RandomStream& random, const ListOpsOptions& options, ListOpsTree& tree)
      : random_(random), options_(options), tree_(tree) {}

  int64_t node(int64_t depth) {
    if (std::ssize(tree_.tokens) >= 2 * options_.below_length) return -1;
    if (depth >= options_.max_depth || random_.uniform() > options_.operator_share) {
      const auto digit = static_cast<uint8_t>(random_.below(10));
      tree_.tokens.push_back(digit);
      return digit;
    }
    const auto op = static_cast<uint8_t>(kListMin + random_.below(4));
    const int64_t count =
        2 + static_cast<int64_t>(random_.below(static_cast<uint64_t>(options_.max_arguments - 1)));
    tree_.tokens.push_back(op);
    std::vector<int64_t> arguments;
    for (int64_t i = 0; i < count; ++i) {
      arguments.push_back(node(depth + 1));
      if (arguments.back() < 0) return -1;
    }
    tree_.tokens.push_back(kListEnd);
    return apply(op, arguments);
  }

 private:
  favor::RandomStream& random_;
  const ListOpsOptions& options_;
  ListOpsTree& tree_;
};

std::string_view text_of(const std::vector<uint8_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size()};
}

}  // namespace

std::shared_ptr<const Vocabulary> listops_vocabulary() {
  return word_vocabulary("listops", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN",
                                     "[MAX", "[MED", "[SM", "]"});
}

void ListOpsOptions::check() const {
  FAVOR_CHECK(max_depth >= 2 && max_depth <= 100, "max_depth is ", max_depth,
              ", expected 2 to 100");
  FAVOR_CHECK(max_arguments >= 2 && max_arguments <= 100, "max_arguments is ", max_arguments,
              ", expected 2 to 100");
  FAVOR_CHECK(operator_share > 0 && operator_share < 1, "operator_share is ", operator_share,
              ", expected a number in (0, 1)");
  FAVOR_CHECK(above_length >= 1 && below_length >= above_length + 8, "below_length is ",
              below_length, ", expected at least ", above_length + 8, " (above_length + 8)");
}

ListOpsTree draw_tree(favor::RandomStream& random, const ListOpsOptions& options) {
  ListOpsTree tree;
  tree.value = Drawing(random, options, tree).node(1);
  return tree;
}

int64_t evaluate_listops(std::span<const uint8_t> tokens) {
  std::vector<uint8_t> operators;
  std::vector<std::vector<int64_t>> arguments(1);
  for (const uint8_t token : tokens) {
    if (token < 10) {
      arguments.back().push_back(token);
    } else if (token < kListEnd) {
      operators.push_back(token);
      arguments.emplace_back();
    } else {
      if (token > kListEnd || operators.empty() || arguments.back().empty()) return -1;
      const int64_t value = apply(operators.back(), arguments.back());
      operators.pop_back();
      arguments.pop_back();
      arguments.back().push_back(value);
    }
  }
  return operators.empty() && arguments[0].size() == 1 ? arguments[0][0] : -1;
}

LabelledSplits generate_listops(const ListOpsOptions& options, std::span<const int64_t> counts,
                                uint64_t seed, int64_t begin) {
  options.check();
  LabelledSplits splits;
  for (int digit = 0; digit < 10; ++digit) splits.classes.push_back(std::to_string(digit));
  constexpr double kHeldOut = 0.1;  // share of all expressions that only valid may hold, or test
  std::shared_ptr<LabelledSet>* const sets[] = {&splits.train, &splits.valid, &splits.test};
  for (size_t side = 0; side < 3; ++side) {
    *sets[side] = std::make_shared<LabelledSet>(options.below_length, begin);
    favor::RandomStream random(sequence_hash("performer/listops", seed), side);
    std::unordered_set<uint64_t> seen;
    // Short expressions are few: when nothing new comes any more, there are no more of them.
    int64_t in_vain = 0;
    while ((*sets[side])->size() < counts[side]) {
      FAVOR_CHECK(++in_vain < 10000000, "ListOps: there are hardly ", counts[side],
                  " distinct expressions of ", options.above_length + 1, " to ",
                  options.below_length - 1, " tokens, expected longer ones or fewer examples");
      const ListOpsTree tree = draw_tree(random, options);
      const int64_t length = std::ssize(tree.tokens);
      if (length <= options.above_length || length >= options.below_length) continue;
      const uint64_t hash = sequence_hash(text_of(tree.tokens), 0);
      const double place = hash_fraction(hash);
      const size_t owner = place < kHeldOut ? 1 : place < 2 * kHeldOut ? 2 : 0;
      if (owner != side || !seen.insert(hash).second) continue;
      (*sets[side])->add(tree.tokens, tree.value);
      in_vain = 0;
    }
  }
  return splits;
}

}  // namespace performer
