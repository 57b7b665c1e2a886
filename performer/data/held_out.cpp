// SPDX-License-Identifier: Apache-2.0
#include "performer/data/held_out.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/sequences.h"

namespace performer {
namespace {

using favor::message;

// Calls take(line, number) for each line of a text file, ends removed.
void for_each_line(const std::string& path,
                   const std::function<void(std::string_view, int64_t)>& take) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(message(path, ": cannot open: ", std::strerror(errno)));
  std::string line;
  int64_t number = 0;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    take(line, ++number);
  }
  if (file.bad()) throw std::runtime_error(message(path, ": cannot read: ", std::strerror(errno)));
}

// The number at the start of `text`, which begins after "GO:"; -1 unless seven digits stand there.
int64_t term_number(std::string_view text) {
  constexpr size_t kDigits = 7;
  if (text.size() < kDigits) return -1;
  int64_t number = 0;
  for (const char c : text.substr(0, kDigits)) {
    if (c < '0' || c > '9') return -1;
    number = 10 * number + (c - '0');
  }
  return number;
}

std::unordered_set<uint32_t> parse_list(std::string_view list) {
  std::unordered_set<uint32_t> terms;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view word = list.substr(begin, end - begin);
    const int64_t number =
        word.size() == 10 && word.starts_with("GO:") ? term_number(word.substr(3)) : -1;
    FAVOR_CHECK(number >= 0, "GO terms: '", word, "' is no term, expected GO: and seven digits");
    terms.insert(static_cast<uint32_t>(number));
    begin = end + 1;
  }
  return terms;
}

}  // namespace

HeldOutClusters::HeldOutClusters(const std::string& path, int64_t min_size, double fraction,
                                 uint64_t seed) {
  FAVOR_CHECK(min_size >= 1, "ood_min_cluster is ", min_size, ", expected at least 1");
  FAVOR_CHECK(fraction > 0 && fraction <= 1, "ood_fraction is ", fraction,
              ", expected more than 0 and at most 1");
  std::unordered_map<std::string, uint32_t> numbers;  // by representative
  std::vector<int64_t> sizes;
  std::vector<double> places;
  for_each_line(path, [&](std::string_view line, int64_t at) {
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos || tab == 0 || tab + 1 == line.size() ||
        line.find('\t', tab + 1) != std::string_view::npos) {
      throw std::runtime_error(
          message(path, ":", at, ": expected two names with a tab between them"));
    }
    const std::string representative(line.substr(0, tab));
    const auto next = static_cast<uint32_t>(sizes.size());
    const auto [cluster, is_new] = numbers.try_emplace(representative, next);
    if (is_new) {
      sizes.push_back(0);
      places.push_back(hash_fraction(sequence_hash(representative, seed)));
    }
    const auto [member, is_first] =
        cluster_of_.try_emplace(std::string(line.substr(tab + 1)), cluster->second);
    if (!is_first && member->second != cluster->second) {
      throw std::runtime_error(
          message(path, ":", at, ": ", member->first, " is in a second cluster, expected one"));
    }
    sizes[cluster->second] += is_first ? 1 : 0;
  });
  if (sizes.empty()) throw std::runtime_error(message(path, ": holds no line, expected clusters"));
  for (size_t i = 0; i < sizes.size(); ++i) {
    held_out_.push_back(sizes[i] >= min_size && places[i] < fraction);
  }
}

HeldOutClusters::Side HeldOutClusters::side_of(std::string_view name) const {
  auto found = cluster_of_.find(std::string(name));
  if (found == cluster_of_.end()) {
    const size_t bar = name.find('|');
    if (bar == std::string_view::npos) return Side::kUnknown;
    const std::string_view rest = name.substr(bar + 1);
    found = cluster_of_.find(std::string(rest.substr(0, rest.find('|'))));
  }
  if (found == cluster_of_.end()) return Side::kUnknown;
  return held_out_[found->second] ? Side::kHeldOut : Side::kIn;
}

int64_t HeldOutClusters::num_held_out() const {
  return std::count(held_out_.begin(), held_out_.end(), true);
}

std::vector<uint32_t> go_terms_in(std::string_view text) {
  std::vector<uint32_t> terms;
  for (size_t at = 0; (at = text.find("GO:", at)) != std::string_view::npos; at += 3) {
    const int64_t number = term_number(text.substr(at + 3));
    if (number >= 0) terms.push_back(static_cast<uint32_t>(number));
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
  return terms;
}

std::string go_term(uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof text, "GO:%07u", number);
  return text;
}

std::unordered_set<uint32_t> read_held_out_terms(const std::string& list,
                                                 const std::string& graph_path) {
  std::unordered_set<uint32_t> terms = parse_list(list);
  if (graph_path.empty()) return terms;
  std::unordered_multimap<uint32_t, uint32_t> children;
  std::unordered_set<uint32_t> known;
  for_each_line(graph_path, [&](std::string_view line, int64_t at) {
    const size_t tab = line.find('\t');
    const std::vector<uint32_t> pair = go_terms_in(line);
    // Roots of obsolete terms have a name instead of a number.
    if (tab == std::string_view::npos || pair.empty()) {
      throw std::runtime_error(
          message(graph_path, ":", at, ": expected parent, child and relation with tabs between"));
    }
    if (!line.starts_with("GO:") || line.size() < tab + 11) return;
    const int64_t parent = term_number(line.substr(3)), child = term_number(line.substr(tab + 4));
    if (parent < 0 || child < 0) return;
    known.insert({static_cast<uint32_t>(parent), static_cast<uint32_t>(child)});
    if (line.ends_with("\tis_a") || line.ends_with("\tpart_of")) {
      children.emplace(static_cast<uint32_t>(parent), static_cast<uint32_t>(child));
    }
  });
  for (const uint32_t term : terms) {
    if (known.contains(term)) continue;
    throw std::runtime_error(
        message(graph_path, ": does not have ", go_term(term), ", expected every term held out"));
  }
  std::vector<uint32_t> open(terms.begin(), terms.end());
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto it = begin; it != end; ++it) {
      if (terms.insert(it->second).second) open.push_back(it->second);
    }
  }
  return terms;
}

}  // namespace performer
