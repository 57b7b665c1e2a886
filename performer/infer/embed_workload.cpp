// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/embed_workload.h"

#include <torch/utils.h>

#include <span>
#include <vector>

#include "favor/check.h"
#include "performer/infer/embed.h"
#include "performer/infer/records.h"
#include "performer/infer/sequence_model.h"
#include "performer/infer/work.h"
#include "performer/models/models.h"
#include "performer/nn/autocast.h"

namespace performer {
namespace {

SequenceModel make_model(const EmbedWorkOptions& options, const Tokenizer& tokenizer) {
  torch::manual_seed(0);
  ModelConfig config = options.model;
  config.vocab_size = tokenizer.size();
  return SequenceModel(LanguageModel(config), tokenizer, tokenizer.bos(), /*chunk=*/0,
                       options.batch_tokens);
}

}  // namespace

void EmbedWorkOptions::check() const {
  model.check();
  FAVOR_CHECK(!data.empty(), "data is missing, expected a FASTA file (to embed)");
  FAVOR_CHECK(count >= 1, "count is ", count, ", expected at least 1");
  FAVOR_CHECK(groups >= 1 && groups <= count, "groups is ", groups, ", expected 1 to ", count);
  FAVOR_CHECK(batch_tokens >= 1, "batch_tokens is ", batch_tokens, ", expected at least 1");
}

struct EmbedWorkload::Parts {
  explicit Parts(const EmbedWorkOptions& given)
      : options(given),
        records(read_records(given.data, Tokenizer::protein())),
        model(make_model(given, records.tokenizer)) {}

  EmbedWorkOptions options;
  Records records;
  SequenceModel model;
  std::vector<std::vector<std::vector<int64_t>>> groups;  // of passes of indices of records
  size_t next = 0;
};

EmbedWorkload::EmbedWorkload(const EmbedWorkOptions& options) {
  options.check();
  parts_ = std::make_unique<Parts>(options);
  const SequenceSet& sequences = parts_->records.sequences;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < sequences.size() && std::ssize(chosen) < options.count; ++i) {
    if (sequences.length(i) > 0) chosen.push_back(i);
  }
  FAVOR_CHECK(std::ssize(chosen) == options.count, options.data, " holds ", chosen.size(),
              " records with a residue, expected at least ", options.count);
  // The passes of a whole run, start and end tokens included.
  std::vector<int64_t> lengths;
  for (const int64_t i : chosen) lengths.push_back(sequences.length(i) + 2);
  std::vector<std::vector<int64_t>> passes = plan_batches(lengths, options.batch_tokens);
  FAVOR_CHECK(options.groups <= std::ssize(passes), "groups is ", options.groups,
              ", expected at most ", passes.size(), " (passes of ", options.count, " records)");
  parts_->groups.resize(static_cast<size_t>(options.groups));
  for (size_t n = 0; n < passes.size(); ++n) {
    for (int64_t& i : passes[n]) i = chosen[i];
    parts_->groups[n % parts_->groups.size()].push_back(passes[n]);
  }
}

EmbedWorkload::~EmbedWorkload() = default;

int64_t EmbedWorkload::groups() const {
  return std::ssize(parts_->groups);
}

int64_t EmbedWorkload::run() {
  Parts& parts = *parts_;
  const std::vector<std::vector<int64_t>>& group = parts.groups[parts.next];
  parts.next = (parts.next + 1) % parts.groups.size();
  const Autocast autocast(parts.options.bfloat16);
  int64_t residues = 0;
  for (const std::vector<int64_t>& pass : group) {
    std::vector<std::span<const uint8_t>> sequences;
    for (const int64_t i : pass) {
      sequences.push_back(parts.records.sequences[i]);
      residues += std::ssize(sequences.back());
    }
    embed(parts.model, sequences, EmbedOptions());
  }
  return residues;
}

}  // namespace performer
