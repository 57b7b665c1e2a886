// SPDX-License-Identifier: Apache-2.0
// Generation with a model of text: prompts and continuations as they are, or as JSON lines.
#ifndef PERFORMER_CLI_GENERATE_PLAIN_H_
#define PERFORMER_CLI_GENERATE_PLAIN_H_

#include <cstdint>
#include <string>

#include "performer/infer/sampling.h"
#include "performer/train/checkpoint.h"

namespace performer::cli {

struct PlainOptions {
  SamplingOptions sampling;  ///< max_length counts tokens, prompt included
  std::string prompt, output;
  int64_t count = 1;
  int64_t batch = 1;
  uint64_t seed = 0;
  bool json = false;
  bool log_probs = false;
};

/// A single text is written as it is drawn; several are written whole, each after a line
/// `==> 1 <==`. JSON objects have the keys name, text, tokens, ended, and with log_probs
/// mean_log_prob. Returns how many tokens were drawn. Throws std::runtime_error for a model of
/// another task than text, favor::Error for a prompt that cannot be encoded or a repetition penalty
/// with a vocabulary above 256.
int64_t generate_plain(LoadedModel& loaded, const PlainOptions& options);

}  // namespace performer::cli

#endif  // PERFORMER_CLI_GENERATE_PLAIN_H_
