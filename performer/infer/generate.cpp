// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/generate.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "favor/check.h"
#include "favor/sha256.h"

namespace performer {
namespace {

// Evaluation for the time of a call.
class Evaluation {
 public:
  explicit Evaluation(LanguageModel& model) : model_(model), was_training_(model->is_training()) {
    model->eval();
  }
  ~Evaluation() { model_->train(was_training_); }

 private:
  LanguageModel& model_;
  bool was_training_;
  torch::NoGradGuard no_grad_;
};

torch::Tensor column(const std::vector<int64_t>& ids) {
  return torch::tensor(ids, torch::kInt64).unsqueeze(1);
}

// Jobs that are decoded together: row r of the state is job rows[r].
class Batch {
 public:
  Batch(LanguageModel& model, const LetterIds& letters, std::span<const StreamJob> jobs,
        int64_t first, const SamplingOptions& options, const TokenSink& sink)
      : model_(model),
        letters_(letters),
        jobs_(jobs),
        first_(first),
        options_(options),
        sink_(sink) {
    for (const StreamJob& job : jobs_) {
      random_.push_back(job.random.open());
      recent_.push_back(job.start->recent);
      length_.push_back(job.start->length);
    }
    next_.resize(jobs.size());
    ended_.resize(jobs.size());
  }

  void run() {
    absorb_starts();
    while (!rows_.empty()) {
      draw();
      std::vector<int64_t> kept, tokens;
      for (int64_t r = 0; r < std::ssize(rows_); ++r) {
        const int64_t job = rows_[r];
        if (ended_[job] || length_[job] >= options_.max_length) continue;
        kept.push_back(r);
        tokens.push_back(next_[job]);
      }
      // The last token of a sequence stays to be absorbed by whoever continues it.
      if (kept.empty()) break;
      if (kept.size() < rows_.size()) {
        state_ = select_streams(state_, kept);
        for (int64_t& r : kept) r = rows_[r];
        rows_ = kept;
      }
      logits_ = model_->decode(column(tokens), state_).contiguous();
    }
  }

  /// After run() of a single job that had something to draw.
  SavedStream saved() && {
    SavedStream saved;
    saved.start.state = std::move(state_);
    saved.start.pending = {next_[0]};
    saved.start.recent = recent_[0];
    saved.start.length = length_[0];
    saved.random = jobs_[0].random;
    saved.random.position = random_[0].position();
    saved.ended = ended_[0];
    return saved;
  }

 private:
  // First passes, one for each run of jobs with the same start.
  void absorb_starts() {
    std::vector<DecoderState> states;
    std::vector<torch::Tensor> logits;
    for (int64_t j = 0; j < std::ssize(jobs_);) {
      const StreamStart* start = jobs_[j].start;
      DecoderState state = start->state;
      const torch::Tensor tokens = torch::tensor(start->pending, torch::kInt64).unsqueeze(0);
      const torch::Tensor row = model_->decode(tokens, state);
      std::vector<int64_t> copies;
      for (; j < std::ssize(jobs_) && jobs_[j].start == start; ++j) {
        copies.push_back(0);
        rows_.push_back(j);
      }
      logits.push_back(row.expand({std::ssize(copies), row.size(1)}));
      states.push_back(copies.size() == 1 ? std::move(state) : select_streams(state, copies));
    }
    state_ = join_streams(std::move(states));
    logits_ = torch::cat(logits).contiguous();
  }

  void draw() {
    const auto V = static_cast<size_t>(logits_.size(1));
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t job = rows_[r];
      const std::span<const float> row(logits_.const_data_ptr<float>() + r * V, V);
      adjusted_.assign(row.begin(), row.end());
      if (options_.repetition_penalty != 1) {
        penalise(adjusted_, recent_[job].seen(options_.penalty_window),
                 options_.repetition_penalty);
      }
      const int64_t id =
          sample_token(adjusted_, options_, letters_.num_letters, letters_.end, random_[job]);
      next_[job] = id;
      ended_[job] = id == letters_.end;
      if (!ended_[job]) {
        recent_[job].add(id);
        ++length_[job];
      }
      sink_(first_ + job, id, log_probability(row, id));
    }
  }

  LanguageModel& model_;
  LetterIds letters_;
  std::span<const StreamJob> jobs_;
  int64_t first_;
  const SamplingOptions& options_;
  const TokenSink& sink_;

  std::vector<favor::RandomStream> random_;  // of each job, as the next four
  std::vector<RecentTokens> recent_;
  std::vector<int64_t> length_, next_;
  std::vector<bool> ended_;
  std::vector<int64_t> rows_;
  DecoderState state_;
  torch::Tensor logits_;
  std::vector<float> adjusted_;
};

void check_jobs(const ModelConfig& config, std::span<const StreamJob> jobs,
                const SamplingOptions& options, int64_t batch) {
  options.check();
  FAVOR_CHECK(config.causal, "generate: the model is a masked-LM encoder, expected a causal model");
  FAVOR_CHECK(batch >= 1, "generate: batch is ", batch, ", expected at least 1");
  FAVOR_CHECK(options.max_length <= config.max_positions(), "generate: max_length is ",
              options.max_length, ", expected at most ", config.max_positions_text());
  for (const StreamJob& job : jobs) {
    FAVOR_CHECK(job.start->length <= options.max_length, "generate: a sequence starts with ",
                job.start->length, " letters, expected at most max_length = ", options.max_length);
  }
}

}  // namespace

favor::RandomStream RandomPlace::open() const {
  favor::RandomStream random(seed, stream, substream);
  random.seek(position);
  return random;
}

StreamStart start_stream(const Tokenizer& tokenizer, int64_t start_token,
                         const std::string& prompt) {
  StreamStart start;
  start.pending.push_back(start_token);
  extend_stream(start, tokenizer, prompt);
  return start;
}

void extend_stream(StreamStart& start, const Tokenizer& tokenizer, const std::string& more) {
  for (const uint8_t id : tokenizer.encode(more)) {
    start.pending.push_back(id);
    start.recent.add(id);
    ++start.length;
  }
}

RandomPlace random_place(uint64_t seed, const std::string& prompt, int64_t index) {
  favor::Sha256 sha;
  sha.update(prompt.data(), prompt.size());
  RandomPlace place;
  place.seed = seed;
  place.stream = static_cast<uint64_t>(index);
  place.substream = static_cast<uint32_t>(std::stoul(sha.digest().substr(0, 8), nullptr, 16));
  return place;
}

void generate(LanguageModel& model, const LetterIds& letters, std::span<const StreamJob> jobs,
              const SamplingOptions& options, int64_t batch, const TokenSink& sink,
              SavedStream* last) {
  const ModelConfig& config = model->config();
  check_jobs(config, jobs, options, batch);
  FAVOR_CHECK(last == nullptr || jobs.size() == 1, "generate: jobs holds ", jobs.size(),
              " sequences, expected 1 to keep the state of");
  const Evaluation evaluation(model);
  const bool equal_lengths = rows_share_position(config);
  const auto complete = [&](const StreamJob& job) {
    return job.start->length >= options.max_length;
  };
  const auto tokens = [&](size_t job) {
    return jobs[job].start->state.position + std::ssize(jobs[job].start->pending);
  };
  if (last != nullptr && complete(jobs[0])) *last = {*jobs[0].start, jobs[0].random, false};
  for (size_t first = 0; first < jobs.size();) {
    if (complete(jobs[first])) {
      ++first;
      continue;
    }
    size_t end = first + 1;
    while (end < jobs.size() && static_cast<int64_t>(end - first) < batch && !complete(jobs[end]) &&
           (!equal_lengths || tokens(end) == tokens(first))) {
      ++end;
    }
    Batch together(model, letters, jobs.subspan(first, end - first), static_cast<int64_t>(first),
                   options, sink);
    together.run();
    if (last != nullptr) *last = std::move(together).saved();
    first = end;
  }
}

std::vector<GeneratedSequence> generate(LanguageModel& model, const Tokenizer& tokenizer,
                                        int64_t start_token, const std::string& prompt,
                                        int64_t count, int64_t first_index, uint64_t seed,
                                        const SamplingOptions& options) {
  FAVOR_CHECK(count >= 0, "generate: count is ", count, ", expected at least 0");
  const StreamStart start = start_stream(tokenizer, start_token, prompt);
  std::vector<StreamJob> jobs;
  for (int64_t i = 0; i < count; ++i) {
    jobs.push_back({&start, random_place(seed, prompt, first_index + i)});
  }
  std::vector<GeneratedSequence> sequences(static_cast<size_t>(count), {prompt, false});
  generate(model, tokenizer, jobs, options, kStreamsPerBatch, [&](int64_t job, int64_t id, double) {
    if (id == tokenizer.eos()) {
      sequences[job].ended = true;
    } else {
      sequences[job].letters += tokenizer.decode(std::span<const int64_t>(&id, 1));
    }
  });
  return sequences;
}

}  // namespace performer
