// SPDX-License-Identifier: Apache-2.0
#include "performer/data/prepare.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "favor/check.h"
#include "performer/data/blast.h"
#include "performer/data/held_out.h"
#include "performer/data/spool.h"
#include "performer/data/statistics.h"
#include "performer/data/token_file.h"

namespace performer {
namespace {

using favor::message;
using nlohmann::ordered_json;

// ACCESSION|GO:...,GO:..., whose terms databases of several ontologies share out among them.
bool lists_go_terms(const FastaRecord& record) {
  return record.header.size() > record.name.size() &&
         std::string_view(record.header).substr(record.name.size()).starts_with("|GO:");
}

class Preparation {
 public:
  Preparation(const std::string& output, const PrepareOptions& options)
      : options_(options), output_(output), tokens_(output), texts_(output), headers_(output) {
    if (!options.clusters.empty()) {
      clusters_.emplace(options.clusters, options.ood_min_cluster, options.ood_fraction,
                        options.split.seed);
    }
    if (!options.go_terms.empty()) {
      held_out_terms_ = read_held_out_terms(options.go_terms, options.go_graph);
    }
  }

  void read(const std::string& input) {
    ordered_json source = {{"path", input}};
    if (is_blast_database(input)) {
      source["format"] = "blast";
      read_blast(input, source);
    } else {
      source["format"] = "fasta";
      read_fasta(input, source);
    }
    inputs_.push_back(std::move(source));
  }

  ordered_json write(const std::vector<std::string>& inputs) {
    if (hashes_.empty()) throw std::runtime_error(inputs[0] + ": no record holds a residue");
    if (clusters_ && num_unknown_ == std::ssize(hashes_)) {
      throw std::runtime_error(message(options_.clusters, ": has none of the ", num_unknown_,
                                       " sequences, expected their names (first words of the "
                                       "headers)"));
    }
    write_headers();
    TokenFileContent content;
    content.tokens = tokens_.map();
    content.offsets = tokens_.offsets();
    content.headers = headers_.map();
    content.header_offsets = headers_.offsets();
    mark_duplicates(content);
    sort_into_sets(content);
    ordered_json description = describe(content);
    content.description =
        description.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    write_token_file(output_, content);
    return description;
  }

 private:
  void read_fasta(const std::string& input, ordered_json& source) {
    FastaReader reader(input);
    FastaRecord record;
    while (reader.next(record)) {
      if (!record.sequence.empty()) add(record, go_terms_in(record.header));
    }
    note_counts(reader.counts(), source);
  }

  void read_blast(const std::string& input, ordered_json& source) {
    BlastDatabase database(input);
    FastaRecord record;
    int64_t united = 0;
    for (int64_t i = 0; i < database.size(); ++i) {
      database.read(i, record);
      if (record.sequence.empty()) continue;
      const std::vector<uint32_t> terms = go_terms_in(record.header);
      const auto [known, is_new] = accessions_.try_emplace(record.name, std::ssize(hashes_));
      if (is_new) {
        add(record, terms);
        continue;
      }
      unite(known->second, record, terms, input);
      ++united;
    }
    source["united"] = united;
    num_united_ += united;
    note_counts(database.counts(), source);
  }

  static void note_counts(const FastaCounts& counts, ordered_json& source) {
    source["records"] = counts.records;
    source["residues"] = counts.residues;
    source["changes"] = counts.changes();
  }

  void add(const FastaRecord& record, const std::vector<uint32_t>& terms) {
    const auto number = std::ssize(hashes_);
    hashes_.push_back(sequence_hash(record.sequence, options_.split.seed));
    const std::vector<uint8_t> ids = tokenizer_.encode(record.sequence);
    tokens_.add(ids.data(), ids.size());
    bool held_out = has_held_out(terms);
    if (clusters_) {
      const auto side = clusters_->side_of(record.name);
      held_out = held_out || side == HeldOutClusters::Side::kHeldOut;
      num_unknown_ += side == HeldOutClusters::Side::kUnknown ? 1 : 0;
    }
    held_out_.push_back(held_out);
    if (lists_go_terms(record)) {
      for (const uint32_t term : terms) annotations_.emplace_back(number, term);
      texts_.add(record.name.data(), record.name.size());
    } else {
      texts_.add(record.header.data(), record.header.size());
    }
  }

  // A protein that an earlier database has too.
  void unite(int64_t number, const FastaRecord& record, const std::vector<uint32_t>& terms,
             const std::string& input) {
    const int64_t length = tokens_.offsets()[number + 1] - tokens_.offsets()[number];
    if (length != std::ssize(record.sequence) ||
        hashes_[number] != sequence_hash(record.sequence, options_.split.seed)) {
      throw std::runtime_error(message(input, ": sequence ", record.line - 1, ": ", record.name,
                                       " has ", record.sequence.size(),
                                       " residues that differ from its ", length,
                                       " read before, expected one sequence per accession"));
    }
    if (has_held_out(terms)) held_out_[number] = true;
    if (!lists_go_terms(record)) return;
    for (const uint32_t term : terms) annotations_.emplace_back(number, term);
  }

  bool has_held_out(const std::vector<uint32_t>& terms) const {
    return std::any_of(terms.begin(), terms.end(),
                       [&](uint32_t term) { return held_out_terms_.contains(term); });
  }

  // Only once all databases are read is it known which terms a protein has.
  void write_headers() {
    std::sort(annotations_.begin(), annotations_.end());
    annotations_.erase(std::unique(annotations_.begin(), annotations_.end()), annotations_.end());
    const std::span<const uint8_t> texts = texts_.map();
    auto next = annotations_.begin();
    for (int64_t i = 0; i < std::ssize(hashes_); ++i) {
      std::string header(texts.begin() + texts_.offsets()[i],
                         texts.begin() + texts_.offsets()[i + 1]);
      for (bool first = true; next != annotations_.end() && next->first == i; ++next) {
        header += first ? ' ' : ',';
        header += go_term(next->second);
        first = false;
      }
      headers_.add(header.data(), header.size());
    }
  }

  // Equal hashes only suggest equal sequences: the residues decide.
  void mark_duplicates(const TokenFileContent& content) {
    const auto residues = [&](int64_t i) {
      const auto begin = static_cast<size_t>(content.offsets[i]);
      return content.tokens.subspan(begin, static_cast<size_t>(content.offsets[i + 1]) - begin);
    };
    std::vector<int64_t> by_hash(hashes_.size());
    std::iota(by_hash.begin(), by_hash.end(), int64_t{0});
    std::sort(by_hash.begin(), by_hash.end(), [&](int64_t a, int64_t b) {
      return std::pair(hashes_[a], a) < std::pair(hashes_[b], b);
    });
    is_duplicate_.assign(hashes_.size(), false);
    std::vector<int64_t> distinct;  // sequences of the current hash
    for (const int64_t i : by_hash) {
      if (!distinct.empty() && hashes_[distinct[0]] != hashes_[i]) distinct.clear();
      const auto same = std::find_if(distinct.begin(), distinct.end(), [&](int64_t other) {
        return std::ranges::equal(residues(other), residues(i));
      });
      if (same == distinct.end()) {
        distinct.push_back(i);
        continue;
      }
      is_duplicate_[i] = true;
      ++num_duplicates_;
      if (held_out_[i]) held_out_[*same] = true;
    }
  }

  TokenSet set_of(int64_t i) const {
    if (held_out_[i]) return TokenSet::kOod;
    const Split split = split_of_hash(hashes_[i], options_.split);
    if (split == Split::kTrain) return TokenSet::kTrain;
    return split == Split::kValid ? TokenSet::kValid : TokenSet::kTest;
  }

  void sort_into_sets(TokenFileContent& content) const {
    std::array<std::vector<int64_t>, kNumTokenSets> sets;
    for (int64_t i = 0; i < std::ssize(hashes_); ++i) {
      if (!is_duplicate_[i]) sets[static_cast<size_t>(set_of(i))].push_back(i);
    }
    for (size_t s = 0; s < sets.size(); ++s) {
      content.set_sizes[s] = std::ssize(sets[s]);
      content.order.insert(content.order.end(), sets[s].begin(), sets[s].end());
    }
  }

  ordered_json describe(const TokenFileContent& content) const {
    ordered_json sets;
    SetStatistics all(tokenizer_);
    int64_t next = 0;
    for (size_t s = 0; s < kNumTokenSets; ++s) {
      SetStatistics set(tokenizer_);
      for (const int64_t end = next + content.set_sizes[s]; next < end; ++next) {
        const int64_t i = content.order[next];
        const auto begin = static_cast<size_t>(content.offsets[i]);
        set.add(content.tokens.subspan(begin, static_cast<size_t>(content.offsets[i + 1]) - begin));
      }
      sets[to_string(static_cast<TokenSet>(s))] = set.to_json();
      all.add(set);
    }
    sets["all"] = all.to_json();
    ordered_json description = {{"inputs", inputs_},
                                {"sequences_read", std::ssize(hashes_)},
                                {"residues_read", tokens_.offsets().back()},
                                {"united", num_united_},
                                {"duplicates", num_duplicates_},
                                {"seed", options_.split.seed},
                                {"valid_fraction", options_.split.valid_fraction},
                                {"test_fraction", options_.split.test_fraction}};
    if (clusters_) {
      description["clusters"] = {{"path", options_.clusters},
                                 {"ood_min_cluster", options_.ood_min_cluster},
                                 {"ood_fraction", options_.ood_fraction},
                                 {"clusters", clusters_->num_clusters()},
                                 {"members", clusters_->num_members()},
                                 {"held_out", clusters_->num_held_out()},
                                 {"sequences_not_in_it", num_unknown_}};
    }
    if (!held_out_terms_.empty()) {
      description["go"] = {{"terms", options_.go_terms},
                           {"graph", options_.go_graph},
                           {"held_out", held_out_terms_.size()}};
    }
    description["sets"] = std::move(sets);
    return description;
  }

  const PrepareOptions& options_;
  std::string output_;
  Tokenizer tokenizer_ = Tokenizer::protein();
  Spool tokens_;
  Spool texts_;    // headers, or names of proteins whose terms are in annotations_
  Spool headers_;  // as they are stored
  std::optional<HeldOutClusters> clusters_;
  std::unordered_set<uint32_t> held_out_terms_;
  ordered_json inputs_ = ordered_json::array();
  // One entry per sequence read.
  std::vector<uint64_t> hashes_;
  std::vector<bool> held_out_, is_duplicate_;
  std::unordered_map<std::string, int64_t> accessions_;    // of databases
  std::vector<std::pair<int64_t, uint32_t>> annotations_;  // sequence, GO term
  int64_t num_united_ = 0, num_duplicates_ = 0, num_unknown_ = 0;
};

}  // namespace

void PrepareOptions::check() const {
  split.check();
  FAVOR_CHECK(ood_min_cluster >= 1, "ood_min_cluster is ", ood_min_cluster,
              ", expected at least 1");
  FAVOR_CHECK(ood_fraction > 0 && ood_fraction <= 1, "ood_fraction is ", ood_fraction,
              ", expected more than 0 and at most 1");
  if (!go_terms.empty()) read_held_out_terms(go_terms, "");
  FAVOR_CHECK(go_graph.empty() || !go_terms.empty(),
              "go_graph is given without go_terms, expected terms to hold out");
}

ordered_json prepare_tokens(const std::vector<std::string>& inputs, const std::string& output,
                            const PrepareOptions& options) {
  options.check();
  FAVOR_CHECK(!inputs.empty(), "prepare_tokens: inputs is empty, expected at least one file");
  Preparation preparation(output, options);
  for (const std::string& input : inputs) preparation.read(input);
  return preparation.write(inputs);
}

}  // namespace performer
