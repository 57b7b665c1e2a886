// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/stream_file.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/safetensors.h"
#include "performer/infer/testing.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

class StreamFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ =
        (fs::temp_directory_path() / ("performer-stream-" + std::to_string(::getpid()))).string();
  }
  void TearDown() override { fs::remove(path_); }

  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string error(LanguageModel& model) const {
    try {
      load_stream(path_, model);
    } catch (const std::runtime_error& problem) {
      return problem.what();
    }
    return "no error";
  }

  std::string path_;
};

// Letters and log-probabilities of one stream up to max_length.
struct Part {
  std::string letters;
  std::vector<double> log_probs;
};

Part go_on(LanguageModel& model, const SavedStream& from, SamplingOptions options,
           int64_t max_length, SavedStream* last) {
  const Tokenizer tokenizer = Tokenizer::protein();
  options.max_length = max_length;
  Part part;
  const std::vector<StreamJob> jobs = {{&from.start, from.random}};
  generate(
      model, tokenizer, jobs, options, 1,
      [&](int64_t, int64_t id, double log_prob) {
        part.letters += tokenizer.decode(std::span<const int64_t>(&id, 1));
        part.log_probs.push_back(log_prob);
      },
      last);
  return part;
}

TEST_F(StreamFile, ResumedGenerationHasTheSameBits) {
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.ignore_end = true;
  options.repetition_penalty = 1.2;
  options.penalty_window = 7;
  for (const AttentionMethod method : attention_methods()) {
    if (!has_causal_form(method)) continue;
    ModelConfig config = tiny_model(true, PositionKind::kSinusoidal)->config();
    config.attention.method = method;
    config.attention.local_window = 8;
    config.attention.hash_buckets = 2;
    config.attention.bucket_block = 8;
    for (const bool mixed : {false, true}) {
      // Near keys beside the sums, and heads of two kinds.
      if (mixed) {
        config.attention.local_heads = 1;
        if (method == AttentionMethod::kFavor) config.attention.window = 6;
      }
      LanguageModel model(config);
      model->eval();
      SavedStream beginning;
      beginning.start = start_stream(tokenizer, tokenizer.bos(), "MKT");
      beginning.random = random_place(6, "MKT", 2);
      const Part whole = go_on(model, beginning, options, 90, nullptr);
      ASSERT_EQ(whole.letters.size(), 87u);
      // Cuts at the prompt's end, amid hot tokens and after they were added.
      for (const int64_t cut : {3, 4, 12, 19, 20, 61}) {
        SavedStream last;
        Part joined = go_on(model, beginning, options, cut, &last);
        save_stream(path_, last, model);
        const SavedStream loaded = load_stream(path_, model);
        EXPECT_EQ(loaded.start.length, cut);
        EXPECT_FALSE(loaded.ended);
        const Part rest = go_on(model, loaded, options, 90, nullptr);
        joined.letters += rest.letters;
        joined.log_probs.insert(joined.log_probs.end(), rest.log_probs.begin(),
                                rest.log_probs.end());
        EXPECT_EQ(joined.letters, whole.letters) << cut;
        EXPECT_EQ(joined.log_probs, whole.log_probs) << cut;
      }
    }
  }
}

TEST_F(StreamFile, ForksShareThePastAlone) {
  LanguageModel model = tiny_model(true, PositionKind::kRotary);
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.ignore_end = true;
  SavedStream stream, last;
  stream.start = start_stream(tokenizer, tokenizer.bos(), "A");
  go_on(model, stream, options, 30, &last);
  save_stream(path_, last, model);
  SavedStream a = load_stream(path_, model), b = load_stream(path_, model);
  b.random = random_place(99, "", 0);
  const std::string first = go_on(model, a, options, 60, nullptr).letters;
  EXPECT_NE(go_on(model, b, options, 60, nullptr).letters, first);
  EXPECT_EQ(go_on(model, a, options, 60, nullptr).letters, first);
  extend_stream(b.start, tokenizer, "MK");
  EXPECT_EQ(b.start.length, 32);
  EXPECT_EQ(go_on(model, b, options, 60, nullptr).letters.size(), 28u);
}

TEST_F(StreamFile, SameStreamSameBytes) {
  LanguageModel model = tiny_model(true);
  const Tokenizer tokenizer = Tokenizer::protein();
  SavedStream stream, last;
  stream.start = start_stream(tokenizer, tokenizer.bos(), "ACD");
  go_on(model, stream, {}, 20, &last);
  save_stream(path_, last, model);
  const std::string bytes = content();
  save_stream(path_, load_stream(path_, model), model);
  EXPECT_EQ(content(), bytes);
}

TEST_F(StreamFile, WhatIsNotItsOwnIsRefusedByName) {
  LanguageModel model = tiny_model(true);
  const Tokenizer tokenizer = Tokenizer::protein();
  SavedStream stream, last;
  stream.start = start_stream(tokenizer, tokenizer.bos(), "ACD");
  go_on(model, stream, {}, 20, &last);
  save_stream(path_, last, model);
  EXPECT_EQ(error(model), "no error");
  const std::string bytes = content();

  LanguageModel other = tiny_model(true);
  {
    const torch::NoGradGuard no_grad;
    other->parameters()[0][0][0].add_(1);
  }
  EXPECT_TRUE(error(other).starts_with(path_ + ": weights is ")) << error(other);
  EXPECT_NE(error(other).find(" (the stream of another model)"), std::string::npos);
  other = tiny_model(true);
  other->redraw(1);
  EXPECT_TRUE(error(other).starts_with(path_ + ": weights is ")) << error(other);

  // Cut anywhere, and a bit turned in every stretch of the file.
  for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 23) {
    put(bytes.substr(0, size));
    EXPECT_TRUE(error(model).starts_with(path_ + ": ")) << size;
  }
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 41) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    put(damaged);
    EXPECT_TRUE(error(model).starts_with(path_ + ": ")) << at;
  }
  std::string newer = bytes;
  const std::string version = "\"format_version\":\"1\"";
  const size_t at = newer.find(version);
  ASSERT_NE(at, std::string::npos);
  newer[at + version.size() - 2] = '2';
  put(newer);
  EXPECT_EQ(error(model), path_ + ": format_version is 2, expected 1");

  write_safetensors(path_, {}, {{"format", "pt"}});
  EXPECT_EQ(error(model), path_ + ": format is pt, expected performer-stream");
  write_safetensors(path_, {}, {});
  EXPECT_EQ(error(model), path_ + ": is no stream of performer-stream: it has no format");
  fs::remove(path_);
  EXPECT_TRUE(error(model).starts_with(path_ + ": ")) << error(model);
}

TEST_F(StreamFile, SavesOneStreamAlone) {
  LanguageModel model = tiny_model(true);
  SavedStream stream;
  model->decode(torch::zeros({2, 3}, torch::kInt64), stream.start.state);
  try {
    save_stream(path_, stream, model);
    ADD_FAILURE() << "no error";
  } catch (const favor::Error& error) {
    EXPECT_STREQ(error.what(), "save_stream: state holds 2 streams, expected 1");
  }
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace performer
