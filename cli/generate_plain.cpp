// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_plain.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "cli/sink.h"
#include "favor/check.h"
#include "performer/data/utf8.h"
#include "performer/infer/generate.h"

namespace performer::cli {
namespace {

// What has been drawn of a text.
struct Drawn {
  std::string text;
  int64_t tokens = 0;
  double log_prob = 0;
  bool ended = false;
};

void write_json(Sink& sink, int64_t number, Drawn drawn, const PlainOptions& options) {
  // JSON is UTF-8; a byte model may stop within a character.
  repair_utf8(drawn.text);
  nlohmann::ordered_json object = {{"name", favor::message("generated-", number)},
                                   {"text", drawn.text},
                                   {"tokens", drawn.tokens},
                                   {"ended", drawn.ended}};
  const int64_t count = drawn.tokens + (drawn.ended ? 1 : 0);
  if (options.log_probs && count > 0) object["mean_log_prob"] = drawn.log_prob / double(count);
  sink.write(object.dump() + "\n");
}

}  // namespace

int64_t generate_plain(LoadedModel& loaded, const PlainOptions& options) {
  if (loaded.task != "text") {
    throw std::runtime_error(favor::message(loaded.folder, ": is a model of task ", loaded.task,
                                            ", expected one of task protein, text or pixels"));
  }
  const Vocabulary& vocabulary = *loaded.vocabulary;
  FAVOR_CHECK(options.sampling.repetition_penalty == 1 || vocabulary.num_letters() <= 256,
              "--repetition-penalty is ", options.sampling.repetition_penalty,
              ", expected 1 with a vocabulary of ", vocabulary.num_letters());
  const std::vector<int64_t> prompt = vocabulary.encode(options.prompt);
  StreamStart start;
  start.pending.push_back(loaded.start_token);
  start.pending.insert(start.pending.end(), prompt.begin(), prompt.end());
  for (const int64_t id : prompt) {
    if (id < 256) start.recent.add(id);
  }
  start.length = std::ssize(prompt);
  std::vector<StreamJob> jobs;
  for (int64_t i = 0; i < options.count; ++i) {
    jobs.push_back({&start, random_place(options.seed, options.prompt, i)});
  }
  Sink sink(options.output);
  const bool as_drawn = options.count == 1 && !options.json;
  if (as_drawn) sink.write(options.prompt);
  std::vector<Drawn> texts(jobs.size(), Drawn{options.prompt});
  generate(loaded.model, vocabulary, jobs, options.sampling, options.batch,
           [&](int64_t job, int64_t id, double log_prob) {
             Drawn& drawn = texts[static_cast<size_t>(job)];
             drawn.log_prob += log_prob;
             drawn.ended = id == vocabulary.eos();
             if (drawn.ended) return;
             ++drawn.tokens;
             const std::string text = vocabulary.decode(std::span<const int64_t>(&id, 1));
             drawn.text += text;
             if (as_drawn) sink.write(text), sink.flush();
           });
  int64_t tokens = 0;
  for (int64_t i = 0; i < options.count; ++i) {
    const Drawn& drawn = texts[static_cast<size_t>(i)];
    tokens += drawn.tokens;
    if (options.json) {
      write_json(sink, i + 1, drawn, options);
    } else if (as_drawn) {
      sink.write("\n");
    } else {
      sink.write(favor::message(i > 0 ? "\n" : "", "==> ", i + 1, " <==\n", drawn.text, "\n"));
    }
  }
  sink.commit();
  return tokens;
}

}  // namespace performer::cli
