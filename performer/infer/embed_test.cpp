// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/embed.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "favor/check.h"
#include "performer/data/testing.h"
#include "performer/infer/testing.h"

namespace performer {
namespace {

using torch::Tensor;

Tensor as_tensor(const std::vector<float>& values) {
  return torch::tensor(values);
}

double distance(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(Embed, PoolingsAreThoseOfTheHiddenStates) {
  for (const bool causal : {false, true}) {
    LanguageModel model = tiny_model(causal);
    SequenceModel reader(model, Tokenizer::protein(), 25, 0, 64);
    const std::vector<uint8_t> sequence = Tokenizer::protein().encode("MKTAYIAKQR");
    for (const int64_t layer : {-1, 0, 1, -3}) {
      EmbedOptions options;
      options.poolings = {Pooling::kMean, Pooling::kMax, Pooling::kBos, Pooling::kEos};
      options.per_residue = true;
      options.layer = layer;
      const Embedding got = embed(reader, {sequence}, options)[0];
      const torch::NoGradGuard no_grad;
      model->eval();
      const Tensor hidden =
          model->hidden(torch::tensor(reader.frame(sequence)).unsqueeze(0), {}, layer)[0];
      const Tensor residues = hidden.slice(0, 1, 11);
      const Tensor expected =
          torch::stack({residues.mean(0), std::get<0>(residues.max(0)), hidden[0], hidden[11]});
      EXPECT_LT(distance(as_tensor(got.pooled).view({4, -1}), expected), 1e-6) << layer;
      EXPECT_EQ(distance(as_tensor(got.residues).view({10, -1}), residues), 0) << layer;
    }
  }
}

TEST(Embed, LayersAreCountedFromTheEmbedding) {
  LanguageModel model = tiny_model(false);
  const torch::NoGradGuard no_grad;
  const Tensor tokens = torch::tensor(TokenList{25, 3, 7, 26}).unsqueeze(0);
  const auto parameters = model->named_parameters();
  const Tensor embedded = parameters["embed.tokens.weight"].index_select(0, tokens[0]) +
                          parameters["embed.positions"].slice(0, 0, 4);
  EXPECT_LT(distance(model->hidden(tokens, {}, 0)[0], embedded), 1e-6);
  EXPECT_EQ(distance(model->hidden(tokens, {}, -3), model->hidden(tokens, {}, 0)), 0);
  EXPECT_EQ(distance(model->hidden(tokens, {}, -2), model->hidden(tokens, {}, 1)), 0);
  EXPECT_EQ(distance(model->hidden(tokens, {}, 2), model->hidden(tokens)), 0);
  // The final norm stands behind the last layer alone.
  EXPECT_LT(model->hidden(tokens, {}, 2).mean(-1).abs().max().item<double>(), 1e-5);
  EXPECT_GT(model->hidden(tokens, {}, 1).mean(-1).abs().max().item<double>(), 1e-3);
}

// Rows of a batch are what each gives alone, padded or not, cut into windows or not.
TEST(Embed, BatchEqualsSingle) {
  const Tokenizer tokenizer = Tokenizer::protein();
  for (const bool causal : {false, true}) {
    for (const int64_t chunk : {0, 16}) {
      LanguageModel model = tiny_model(causal);
      SequenceModel together(model, tokenizer, 25, chunk, 4096);
      SequenceModel alone(model, tokenizer, 25, chunk, 1);
      std::vector<std::vector<uint8_t>> letters;
      for (const int64_t length : {40, 33, 7, 1}) letters.push_back(random_residues(length));
      EmbedOptions options;
      options.per_residue = true;
      const std::vector<std::span<const uint8_t>> all(letters.begin(), letters.end());
      const std::vector<Embedding> batch = embed(together, all, options);
      ASSERT_EQ(batch.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const Embedding one = embed(alone, {all[i]}, options)[0];
        ASSERT_EQ(one.residues.size(), all[i].size() * 32);
        EXPECT_LT(distance(as_tensor(batch[i].residues), as_tensor(one.residues)), 1e-5);
        EXPECT_LT(distance(as_tensor(batch[i].pooled), as_tensor(one.pooled)), 1e-5);
      }
    }
  }
}

TEST(Embed, WindowsCoverEveryResidueOnce) {
  LanguageModel model = tiny_model(false);
  const Tokenizer tokenizer = Tokenizer::protein();
  SequenceModel reader(model, tokenizer, 25, 16, 64);
  const std::vector<uint8_t> sequence = random_residues(45);
  EmbedOptions options;
  options.per_residue = true;
  const std::vector<float> got = embed(reader, {sequence}, options)[0].residues;
  const torch::NoGradGuard no_grad;
  const TokenList frame = reader.frame(sequence);
  EXPECT_EQ(reader.num_windows(std::ssize(frame)), 3);
  std::vector<Tensor> parts;
  for (size_t start = 0; start < frame.size(); start += 16) {
    const TokenList window(frame.begin() + static_cast<int64_t>(start),
                           frame.begin() + std::min<int64_t>(start + 16, std::ssize(frame)));
    parts.push_back(model->hidden(torch::tensor(window).unsqueeze(0))[0]);
  }
  const Tensor expected = torch::cat(parts).slice(0, 1, 46);
  EXPECT_LT(distance(as_tensor(got).view({45, -1}), expected), 1e-5);
}

TEST(Embed, RecordsComeInInputOrderAndFailuresAreListed) {
  const TemporaryFolder base;
  Records records;
  for (const int64_t length : {5, 0, 40, 70, 12}) {
    records.names.push_back("r" + std::to_string(length));
    records.headers.push_back(records.names.back());
    records.sequences.add(random_residues(length));
  }
  LanguageModel model = tiny_model(true);  // a learned table of 64 positions
  SequenceModel reader(model, records.tokenizer, 25, 0, 50);
  EmbedOptions options;
  const EmbedLayout layout = {EmbedFormat::kTsv, {"mean"}, false, false, 32};
  EmbeddingFolder folder(base.file("out"), layout, records, {{"a", 1}}, FolderUse::kFresh);
  int64_t done = 0;
  const auto failures = embed_records(reader, records, options, folder,
                                      [&](const EmbedProgress& p) { done = p.done; });
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].item, 1);
  EXPECT_EQ(failures[0].reason, "no residue");
  EXPECT_EQ(failures[1].item, 3);
  EXPECT_EQ(failures[1].reason,
            "72 tokens, expected at most 64 (rows of the model's learned position table)");
  EXPECT_EQ(done, 3);
  folder.finish(failures);
  const std::string table = read_whole(base.file("out/mean.tsv"));
  EXPECT_LT(table.find("\nr5\t"), table.find("\nr40\t"));
  EXPECT_LT(table.find("\nr40\t"), table.find("\nr12\t"));
  EXPECT_EQ(table.find("r70"), std::string::npos);
}

TEST(Embed, SaysWhatIsWrong) {
  LanguageModel model = tiny_model(true);
  const Tokenizer tokenizer = Tokenizer::protein();
  EXPECT_EQ(message_of<favor::Error>([&] { SequenceModel(model, tokenizer, 25, 65, 64); }),
            "--chunk is 65, expected at most 64 (rows of the model's learned position table)");
  EXPECT_EQ(message_of<favor::Error>([&] { SequenceModel(model, tokenizer, 25, 1, 64); }),
            "--chunk is 1, expected 0 or at least 2");
  EXPECT_EQ(message_of<favor::Error>([&] { SequenceModel(model, tokenizer, 25, 0, 0); }),
            "--batch-tokens is 0, expected at least 1");
  SequenceModel reader(model, tokenizer, 25, 0, 64);
  EmbedOptions options;
  EXPECT_EQ(message_of<favor::Error>([&] { embed(reader, {{}}, options); }),
            "embed: a sequence has no residue, expected at least one");
  options.layer = 3;
  const std::vector<uint8_t> sequence = {1, 2};
  EXPECT_EQ(message_of<favor::Error>([&] { embed(reader, {sequence}, options); }),
            "model: layer is 3, expected -3 to 2");
  EXPECT_EQ(message_of<favor::Error>([] { poolings_from_string("mean,cls"); }),
            "pool is 'cls', expected mean | max | bos | eos");
  EXPECT_EQ(message_of<favor::Error>([] { poolings_from_string("max,max"); }),
            "pool has max twice, expected once");
  options.layer = -1;
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : model->parameters()) parameter.fill_(NAN);
  EXPECT_EQ(message_of<std::runtime_error>([&] { embed(reader, {sequence}, options); }),
            "embed: a value is not a finite number (the model's weights are damaged or its "
            "training diverged)");
}

}  // namespace
}  // namespace performer
