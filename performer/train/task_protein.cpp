// SPDX-License-Identifier: Apache-2.0
// The task `protein`: residues of FASTA or token files, the next one or the masked ones.
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/sequences.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

class ProteinData : public TaskData {
 public:
  explicit ProteinData(const TrainConfig& config)
      : options_(config.batch_options()),
        split_seed_(config.data.split_seed),
        splits_(read_splits(config.data.data, tokenizer_, config.split_options())) {}

  std::shared_ptr<const Vocabulary> vocabulary() const override { return protein_vocabulary(); }
  int64_t start_token() const override {
    return performer::start_token(options_.windowing, tokenizer_);
  }
  std::string summary() const override { return splits_.summary(); }
  int64_t size(const std::string& set) const override { return find(set).size(); }
  int64_t train_fingerprint() const override { return splits_.train.fingerprint(); }
  std::unique_ptr<TrainSource> train_batches() const override {
    return std::make_unique<TrainBatches>(splits_.train, tokenizer_, options_);
  }
  EvalSet eval_set(const std::string& set, int64_t max_tokens) const override {
    SequenceSet chosen = set == "all" ? all() : find(set);
    if (max_tokens > 0) chosen = chosen.sample(max_tokens, split_seed_);
    EvalSet result;
    result.size = chosen.size();
    result.batches = std::make_unique<OwnBatches>(std::move(chosen), tokenizer_, options_);
    return result;
  }
  EmpiricalBaseline baseline() const override {
    return EmpiricalBaseline(splits_.train, tokenizer_, options_.objective);
  }

 private:
  // Evaluation batches together with the sequences they point to.
  struct OwnBatches : EvalSource {
    OwnBatches(SequenceSet given, const Tokenizer& tokenizer, const BatchOptions& options)
        : sequences(std::move(given)), batches(sequences, tokenizer, options) {}
    int64_t size() const override { return batches.size(); }
    Batch batch(int64_t i) const override { return batches.batch(i); }

    SequenceSet sequences;
    EvalBatches batches;
  };

  const SequenceSet& find(const std::string& set) const {
    if (set == "train") return splits_.train;
    if (set == "valid") return splits_.valid;
    return set == "ood" ? splits_.ood : splits_.test;
  }

  SequenceSet all() const {
    if (splits_.stored) return splits_.all;
    SequenceSet all = splits_.train;
    for (const SequenceSet* part : {&splits_.valid, &splits_.test}) {
      for (int64_t i = 0; i < part->size(); ++i) all.add((*part)[i]);
    }
    return all;
  }

  Tokenizer tokenizer_ = Tokenizer::protein();
  BatchOptions options_;
  uint64_t split_seed_;
  SplitSequences splits_;
};

}  // namespace

Task protein_task() {
  Task task;
  task.name = "protein";
  task.help = "language model of residues";
  task.input = "a token file or a FASTA file";
  task.set_defaults = [](TrainConfig&) {};
  task.check = [](const TrainConfig& config) {
    FAVOR_CHECK(config.model.vocab_size == Tokenizer::protein().size(), "vocab_size is ",
                config.model.vocab_size, ", expected ", Tokenizer::protein().size(),
                " (the protein alphabet)");
  };
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary>) {
    return std::make_unique<ProteinData>(config);
  };
  return task;
}

}  // namespace performer
