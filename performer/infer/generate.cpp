// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/generate.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

constexpr int64_t kStreamsPerBatch = 16;

struct Candidate {
  int64_t id = 0;
  double weight = 0;
};

}  // namespace

void SamplingOptions::check() const {
  FAVOR_CHECK(temperature >= 0 && std::isfinite(temperature), "temperature is ", temperature,
              ", expected a number of at least 0");
  FAVOR_CHECK(top_k >= 0, "top_k is ", top_k, ", expected at least 0");
  FAVOR_CHECK(top_p > 0 && top_p <= 1, "top_p is ", top_p, ", expected a number in (0, 1]");
  FAVOR_CHECK(max_length >= 1, "max_length is ", max_length, ", expected at least 1");
}

int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     int64_t num_letters, int64_t end, favor::RandomStream& random) {
  std::vector<Candidate> candidates;
  for (int64_t id = 0; id < std::ssize(logits); ++id) {
    if (id >= num_letters && id != end) continue;
    if (!std::isfinite(logits[id])) {
      throw std::runtime_error(favor::message("generate: logit of token ", id, " is ", logits[id],
                                              ", expected a finite number (the model's weights "
                                              "are damaged or its training diverged)"));
    }
    candidates.push_back({id, logits[id]});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
  if (options.temperature == 0) return candidates.front().id;
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    candidates.resize(options.top_k);
  }
  const double largest = candidates.front().weight;
  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((candidate.weight - largest) / options.temperature);
    total += candidate.weight;
  }
  // The smallest set of most probable tokens that holds top_p of the mass.
  double kept = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < options.top_p * total)) {
    kept += candidates[count++].weight;
  }
  double left = random.uniform() * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= candidates[i].weight;
    if (left < 0) return candidates[i].id;
  }
  return candidates[count - 1].id;
}

std::vector<GeneratedSequence> generate(LanguageModel& model, const Tokenizer& tokenizer,
                                        int64_t start_token, const std::string& prompt,
                                        int64_t count, int64_t first_index,
                                        const SamplingOptions& options) {
  options.check();
  FAVOR_CHECK(model->config().causal, "generate: the model is a masked-LM encoder, expected a ",
              "causal model");
  FAVOR_CHECK(count >= 0, "generate: count is ", count, ", expected at least 0");
  const std::vector<uint8_t> letters = tokenizer.encode(prompt);
  FAVOR_CHECK(std::ssize(letters) <= options.max_length, "generate: prompt has ", letters.size(),
              " letters, expected at most max_length = ", options.max_length);
  FAVOR_CHECK(model->config().positions != PositionKind::kLearned ||
                  options.max_length <= model->config().max_length,
              "generate: max_length is ", options.max_length, ", expected at most ",
              model->config().max_length, " (rows of the model's learned position table)");
  torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  std::vector<GeneratedSequence> sequences(count);
  for (int64_t first = 0; first < count; first += kStreamsPerBatch) {
    const int64_t B = std::min(kStreamsPerBatch, count - first);
    std::vector<favor::RandomStream> random;
    for (int64_t b = 0; b < B; ++b) {
      random.emplace_back(options.seed, static_cast<uint64_t>(first_index + first + b));
      sequences[first + b].letters = prompt;
    }
    torch::Tensor tokens = torch::empty({B, 1 + std::ssize(letters)}, torch::kInt64);
    tokens.select(1, 0).fill_(start_token);
    for (size_t i = 0; i < letters.size(); ++i) {
      tokens.select(1, static_cast<int64_t>(i) + 1).fill_(int64_t{letters[i]});
    }
    DecoderState state;
    int64_t running = B;
    for (int64_t length = std::ssize(letters); running > 0 && length < options.max_length;
         ++length) {
      const torch::Tensor logits = model->decode(tokens, state).contiguous();
      const int64_t V = logits.size(1);
      tokens = torch::full({B, 1}, tokenizer.eos(), torch::kInt64);
      for (int64_t b = 0; b < B; ++b) {
        GeneratedSequence& sequence = sequences[first + b];
        if (sequence.ended) continue;
        const int64_t id =
            sample_token({logits.const_data_ptr<float>() + b * V, static_cast<size_t>(V)}, options,
                         tokenizer.num_letters(), tokenizer.eos(), random[b]);
        if (id == tokenizer.eos()) {
          sequence.ended = true;
          --running;
        } else {
          sequence.letters += tokenizer.decode(std::span<const int64_t>(&id, 1));
          tokens[b][0] = id;
        }
      }
    }
  }
  model->train(was_training);
  return sequences;
}

}  // namespace performer
