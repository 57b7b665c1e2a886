// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/variants.h"

#include <torch/types.h>

#include <map>
#include <new>
#include <set>
#include <stdexcept>

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

constexpr favor::Word<VariantScoring> kScorings[] = {
    {VariantScoring::kMaskedMarginals, "masked-marginals"},
    {VariantScoring::kWildTypeMarginals, "wt-marginals"},
    {VariantScoring::kRescore, "rescore"}};

Records as_records(SequenceModel& model, const std::vector<std::string>& sequences) {
  Records records;
  for (const std::string& residues : sequences) {
    records.names.emplace_back();
    records.headers.emplace_back();
    records.sequences.add(model.tokenizer().encode(residues));
  }
  return records;
}

// log p at the places that any of the variants changes, by place.
std::map<int64_t, std::vector<double>> marginals(SequenceModel& model, std::string_view wild_type,
                                                 const std::set<int64_t>& positions, bool masked,
                                                 const std::function<void(int64_t)>& passed) {
  const TokenList row = model.frame(model.tokenizer().encode(wild_type));
  std::vector<int64_t> places;
  for (const int64_t position : positions) places.push_back(position + 1);  // the start token
  torch::Tensor table;
  if (masked) {
    table = masked_log_probabilities(model, row, places, passed);
  } else {
    table = model.log_probabilities({row})[0].index_select(0, torch::tensor(places));
    if (passed) passed(1);
  }
  std::map<int64_t, std::vector<double>> result;
  int64_t number = 0;
  for (const int64_t position : positions) {
    const torch::Tensor values = table[number++].contiguous();
    const double* data = values.const_data_ptr<double>();
    result[position].assign(data, data + values.numel());
  }
  return result;
}

}  // namespace

std::string to_string(VariantScoring scoring) {
  return favor::word_of(kScorings, scoring);
}

VariantScoring variant_scoring_from_string(std::string_view word) {
  return favor::value_of(kScorings, word, "scoring");
}

std::vector<std::optional<VariantScore>> score_variants(
    SequenceModel& model, std::string_view wild_type, const std::vector<Variant>& variants,
    VariantScoring scoring, Direction direction, std::vector<WorkFailure>& failures,
    const std::function<void(int64_t)>& passed) {
  FAVOR_CHECK(!model.causal() || scoring == VariantScoring::kRescore, "variants: scoring is ",
              to_string(scoring), ", expected rescore (the model is causal: marginals need a ",
              "masked one)");
  FAVOR_CHECK(!wild_type.empty(), "variants: the wild type has no residue, expected at least one");
  const int64_t frame = model.causal() ? 1 : 2;
  const std::string problem = model.problem(std::ssize(wild_type) + frame);
  FAVOR_CHECK(problem.empty(), "variants: the wild type has ", problem);

  std::vector<std::optional<VariantScore>> scores(variants.size());
  std::set<int64_t> positions;
  // Equal sequences are passed through once; the wild type comes first.
  std::vector<std::string> sequences = {std::string(wild_type)};
  std::map<std::string, int64_t> number_of = {{sequences[0], 0}};
  std::vector<std::pair<int64_t, int64_t>> rescored;  // variant, sequence
  for (int64_t i = 0; i < std::ssize(variants); ++i) {
    const Variant& variant = variants[i];
    if (scoring != VariantScoring::kRescore && !variant.has_indel) {
      for (const Substitution& change : variant.substitutions) positions.insert(change.position);
      continue;
    }
    const auto [place, added] = number_of.emplace(variant.residues, std::ssize(sequences));
    if (added) sequences.push_back(variant.residues);
    rescored.emplace_back(i, place->second);
  }
  std::map<int64_t, std::vector<double>> table;
  if (!positions.empty()) {
    table =
        marginals(model, wild_type, positions, scoring == VariantScoring::kMaskedMarginals, passed);
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    if (scoring == VariantScoring::kRescore || variants[i].has_indel) continue;
    VariantScore& score = scores[i].emplace(VariantScore{0, scoring});
    for (const Substitution& change : variants[i].substitutions) {
      const std::vector<double>& row = table.at(change.position);
      const auto token = [&](char letter) {
        return model.tokenizer().encode(std::string_view(&letter, 1))[0];
      };
      score.value += row[token(change.to)] - row[token(change.from)];
    }
  }
  if (rescored.empty()) return scores;
  std::vector<WorkFailure> failed;
  const std::vector<SequenceScore> results =
      score_records(model, as_records(model, sequences), direction, failed, passed);
  std::map<int64_t, std::string> reasons;
  for (WorkFailure& failure : failed) reasons[failure.item] = std::move(failure.reason);
  if (reasons.count(0) > 0) {
    throw std::runtime_error(favor::message("variants: the wild type: ", reasons[0]));
  }
  const auto total = [&](int64_t number) {
    return results[number].log_likelihood() + results[number].end;
  };
  for (const auto& [variant, number] : rescored) {
    if (reasons.count(number) > 0) {
      failures.push_back({variant, reasons[number]});
    } else {
      scores[variant] = {total(number) - total(0), VariantScoring::kRescore};
    }
  }
  return scores;
}

}  // namespace performer
