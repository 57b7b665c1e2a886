// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/score.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

using torch::Tensor;

constexpr favor::Word<Direction> kDirections[] = {
    {Direction::kForward, "forward"}, {Direction::kReverse, "reverse"}, {Direction::kMean, "mean"}};

std::vector<SequenceScore> score_one_way(SequenceModel& model,
                                         const std::vector<std::span<const uint8_t>>& sequences,
                                         bool reversed) {
  std::vector<TokenList> targets;
  std::vector<TokenList> rows;
  for (const auto& sequence : sequences) {
    TokenList row = model.frame(sequence, reversed);
    targets.emplace_back(row.begin() + 1, row.end());
    row.pop_back();
    rows.push_back(std::move(row));
  }
  const std::vector<Tensor> tables = model.log_probabilities(rows);
  std::vector<SequenceScore> scores(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Tensor index = torch::tensor(targets[i]).unsqueeze(1);
    const Tensor values = tables[i].gather(1, index).contiguous();
    const double* data = values.const_data_ptr<double>();
    SequenceScore& score = scores[i];
    score.residues.assign(data, data + sequences[i].size());
    score.end = data[sequences[i].size()];
    if (reversed) std::reverse(score.residues.begin(), score.residues.end());
  }
  return scores;
}

}  // namespace

std::string to_string(Direction direction) {
  return favor::word_of(kDirections, direction);
}

Direction direction_from_string(std::string_view word) {
  return favor::value_of(kDirections, word, "direction");
}

double SequenceScore::log_likelihood() const {
  return std::accumulate(residues.begin(), residues.end(), 0.0);
}

double SequenceScore::perplexity() const {
  return std::exp(-log_likelihood() / static_cast<double>(residues.size()));
}

std::vector<SequenceScore> score_causal(SequenceModel& model,
                                        const std::vector<std::span<const uint8_t>>& sequences,
                                        Direction direction) {
  FAVOR_CHECK(model.causal(), "score_causal: the model is a masked one, expected a causal model");
  if (direction != Direction::kMean) {
    return score_one_way(model, sequences, direction == Direction::kReverse);
  }
  std::vector<SequenceScore> scores = score_one_way(model, sequences, /*reversed=*/false);
  const std::vector<SequenceScore> back = score_one_way(model, sequences, /*reversed=*/true);
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores[i].residues.size(); ++j) {
      scores[i].residues[j] = (scores[i].residues[j] + back[i].residues[j]) / 2;
    }
    scores[i].end = (scores[i].end + back[i].end) / 2;
  }
  return scores;
}

Tensor masked_log_probabilities(SequenceModel& model, const TokenList& row,
                                const std::vector<int64_t>& places,
                                const std::function<void(int64_t)>& passed) {
  FAVOR_CHECK(!model.causal(),
              "masked_log_probabilities: the model is causal, expected a masked model");
  const int64_t total = std::ssize(row);
  const int64_t longest = model.chunk() == 0 ? total : std::min(model.chunk(), total);
  const int64_t per_batch = std::max<int64_t>(1, model.batch_tokens() / longest);
  const Tensor table =
      torch::empty({std::ssize(places), model.config().vocab_size}, torch::kDouble);
  const auto compute = [&](std::span<const int64_t> numbers) {
    std::vector<TokenList> rows;
    for (const int64_t number : numbers) {
      // Only the window that holds the place can tell anything about it.
      const int64_t start = places[number] / longest * longest;
      TokenList& masked =
          rows.emplace_back(row.begin() + start, row.begin() + std::min(start + longest, total));
      masked[places[number] - start] = model.tokenizer().mask();
    }
    const std::vector<Tensor> tables = model.log_probabilities(rows);
    for (size_t i = 0; i < numbers.size(); ++i) {
      table[numbers[i]].copy_(tables[i][places[numbers[i]] % longest]);
    }
    if (passed) passed(std::ssize(numbers));
  };
  std::vector<int64_t> numbers(places.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::span<const int64_t> all(numbers);
  for (size_t first = 0; first < all.size(); first += static_cast<size_t>(per_batch)) {
    const size_t count = std::min(static_cast<size_t>(per_batch), all.size() - first);
    if (!compute_halving(all.subspan(first, count), compute).empty()) throw std::bad_alloc();
  }
  return table;
}

SequenceScore score_masked(SequenceModel& model, std::span<const uint8_t> sequence,
                           const std::function<void(int64_t)>& passed) {
  std::vector<int64_t> places(sequence.size());
  std::iota(places.begin(), places.end(), 1);  // after the start token
  const Tensor table = masked_log_probabilities(model, model.frame(sequence), places, passed);
  SequenceScore score;
  const auto values = table.accessor<double, 2>();
  for (size_t i = 0; i < sequence.size(); ++i) {
    score.residues.push_back(values[static_cast<int64_t>(i)][sequence[i]]);
  }
  return score;
}

std::vector<SequenceScore> score_records(SequenceModel& model, const Records& records,
                                         Direction direction, std::vector<WorkFailure>& failures,
                                         const std::function<void(int64_t)>& passed) {
  // Around the residues: the start token, and for a masked model the end token.
  const int64_t frame = model.causal() ? 1 : 2;
  std::vector<int64_t> lengths(records.size(), 0);
  for (int64_t i = 0; i < records.size(); ++i) {
    const int64_t length = records.sequences.length(i);
    std::string problem = length == 0 ? "no residue" : model.problem(length + frame);
    if (problem.empty()) {
      lengths[i] = length + frame;
    } else {
      failures.push_back({i, std::move(problem)});
    }
  }
  std::vector<SequenceScore> scores(records.size());
  // A masked model needs a batch for each sequence and more.
  const int64_t tokens = model.causal() ? model.batch_tokens() : 1;
  for (const std::vector<int64_t>& batch : plan_batches(lengths, tokens)) {
    const auto failed = compute_halving(batch, [&](std::span<const int64_t> part) {
      if (!model.causal()) {
        scores[part[0]] = score_masked(model, records.sequences[part[0]], passed);
        return;
      }
      std::vector<std::span<const uint8_t>> sequences;
      for (const int64_t i : part) sequences.push_back(records.sequences[i]);
      std::vector<SequenceScore> results = score_causal(model, sequences, direction);
      for (size_t i = 0; i < part.size(); ++i) scores[part[i]] = std::move(results[i]);
      if (passed) passed(std::ssize(part));
    });
    failures.insert(failures.end(), failed.begin(), failed.end());
  }
  std::sort(failures.begin(), failures.end(),
            [](const WorkFailure& a, const WorkFailure& b) { return a.item < b.item; });
  return scores;
}

}  // namespace performer
