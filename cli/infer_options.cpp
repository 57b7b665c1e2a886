// SPDX-License-Identifier: Apache-2.0
#include "cli/infer_options.h"

#include <ATen/Parallel.h>

#include <cstdio>

#include "favor/check.h"
#include "performer/infer/records.h"
#include "performer/infer/work.h"
#include "performer/train/checkpoint.h"

namespace performer::cli {
namespace {

constexpr auto kTick = std::chrono::seconds(5);

}  // namespace

void InferOptions::add_to(Options& options) {
  options.add("--model", model, "run, checkpoint or model folder");
  options.add("--chunk", chunk,
              "pass longer sequences through in adjoining windows of this many tokens; 0: whole");
  options.add("--batch-tokens", batch_tokens, "tokens per pass; a longer sequence passes alone");
  options.add("--max-memory", max_memory, "bytes, as 4G; what does not fit is halved; 0: all free");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("--force", force, "replace existing results");
  options.add("--quiet", quiet, "no log");
}

void InferOptions::check() const {
  FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
  FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
              ", expected 0 (all cores) to 1024");
  FAVOR_CHECK(chunk == 0 || chunk >= 2, "--chunk is ", chunk, ", expected 0 or at least 2");
  FAVOR_CHECK(batch_tokens >= 1, "--batch-tokens is ", batch_tokens, ", expected at least 1");
  parse_bytes("--max-memory", max_memory);
}

std::string InferOptions::chunk_hint() const {
  return chunk > 0 ? "" : " (--chunk N passes long ones through in windows)";
}

SequenceModel InferOptions::open(const Command& command, std::string* folder) const {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  LoadedModel loaded = load_model(model);
  if (folder != nullptr) *folder = loaded.folder;
  // After loading, so that the model itself is part of what is in use.
  limit_memory(parse_bytes("--max-memory", max_memory));
  try {
    return SequenceModel(loaded.model, loaded.tokenizer, loaded.start_token, chunk, batch_tokens);
  } catch (const favor::Error& error) {
    throw UsageError(favor::message(command.name, ": ", error.what()));
  }
}

std::string number_text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.6f", value);
  return text;
}

bool Ticker::due() {
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || now - last_ < kTick) return false;
  last_ = now;
  return true;
}

double Ticker::seconds() const {
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
  return spent.count();
}

}  // namespace performer::cli
