// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/embed.h"

#include <torch/types.h>

#include <algorithm>
#include <stdexcept>

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

using torch::Tensor;

constexpr favor::Word<Pooling> kPoolings[] = {{Pooling::kMean, "mean"},
                                              {Pooling::kMax, "max"},
                                              {Pooling::kBos, "bos"},
                                              {Pooling::kEos, "eos"}};

// The start and end tokens around the residues.
constexpr int64_t kFrame = 2;

// `hidden` [residues + 2, dim].
Tensor pool(const Tensor& hidden, const Tensor& residues, Pooling pooling) {
  switch (pooling) {
    case Pooling::kMean:
      // In double: a long sequence would lose digits, and its mean depend on how it is summed.
      return residues.mean(0, /*keepdim=*/false, torch::kDouble).to(torch::kFloat);
    case Pooling::kMax:
      return residues.amax(0);
    case Pooling::kBos:
      return hidden.select(0, 0);
    case Pooling::kEos:
      return hidden.select(0, -1);
  }
  throw std::logic_error("pool: no such pooling");
}

void append(std::vector<float>& values, const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  const float* data = dense.const_data_ptr<float>();
  values.insert(values.end(), data, data + dense.numel());
}

}  // namespace

std::string to_string(Pooling pooling) {
  return favor::word_of(kPoolings, pooling);
}

Pooling pooling_from_string(std::string_view word) {
  return favor::value_of(kPoolings, word, "pool");
}

std::vector<Pooling> poolings_from_string(std::string_view words) {
  std::vector<Pooling> poolings;
  while (!words.empty()) {
    const size_t end = words.find(',');
    const Pooling pooling = pooling_from_string(words.substr(0, end));
    FAVOR_CHECK(std::find(poolings.begin(), poolings.end(), pooling) == poolings.end(), "pool has ",
                to_string(pooling), " twice, expected once");
    poolings.push_back(pooling);
    words = end == std::string_view::npos ? std::string_view() : words.substr(end + 1);
  }
  return poolings;
}

std::vector<Embedding> embed(SequenceModel& model,
                             const std::vector<std::span<const uint8_t>>& sequences,
                             const EmbedOptions& options) {
  const torch::NoGradGuard no_grad;
  std::vector<TokenList> rows;
  for (const auto& sequence : sequences) {
    FAVOR_CHECK(!sequence.empty(), "embed: a sequence has no residue, expected at least one");
    rows.push_back(model.frame(sequence));
  }
  std::vector<Embedding> embeddings;
  for (const Tensor& hidden : model.hidden(rows, options.layer)) {
    const Tensor residues = hidden.slice(0, 1, -1);
    if (!torch::isfinite(hidden).all().item<bool>()) {
      throw std::runtime_error(
          "embed: a value is not a finite number (the model's weights are damaged or its training "
          "diverged)");
    }
    Embedding& embedding = embeddings.emplace_back();
    for (const Pooling pooling : options.poolings) {
      append(embedding.pooled, pool(hidden, residues, pooling));
    }
    if (options.per_residue) append(embedding.residues, residues);
  }
  return embeddings;
}

std::vector<WorkFailure> embed_records(SequenceModel& model, const Records& records,
                                       const EmbedOptions& options, EmbeddingFolder& folder,
                                       const std::function<void(const EmbedProgress&)>& report) {
  std::vector<WorkFailure> failures;
  std::vector<int64_t> lengths(records.size(), 0);
  for (int64_t i = 0; i < records.size(); ++i) {
    const int64_t length = records.sequences.length(i);
    std::string problem = length == 0 ? "no residue" : model.problem(length + kFrame);
    if (problem.empty()) {
      lengths[i] = length + kFrame;
    } else {
      failures.push_back({i, std::move(problem)});
    }
  }
  EmbedProgress progress;
  for (const std::vector<int64_t>& batch : plan_batches(lengths, model.batch_tokens())) {
    progress.done += std::ssize(batch);
    if (std::all_of(batch.begin(), batch.end(), [&](int64_t i) { return folder.done(i); })) {
      continue;
    }
    const auto failed = compute_halving(batch, [&](std::span<const int64_t> part) {
      std::vector<std::span<const uint8_t>> sequences;
      for (const int64_t i : part) sequences.push_back(records.sequences[i]);
      const std::vector<Embedding> embeddings = embed(model, sequences, options);
      for (size_t i = 0; i < part.size(); ++i) folder.put(part[i], embeddings[i]);
    });
    failures.insert(failures.end(), failed.begin(), failed.end());
    for (const int64_t i : batch) progress.residues += records.sequences.length(i);
    report(progress);
  }
  std::sort(failures.begin(), failures.end(),
            [](const WorkFailure& a, const WorkFailure& b) { return a.item < b.item; });
  return failures;
}

}  // namespace performer
