// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/sequence_model.h"

#include <torch/types.h>

#include <algorithm>
#include <stdexcept>

#include "favor/check.h"
#include "performer/models/models.h"

namespace performer {
namespace {

using torch::Tensor;

// Part of a row that goes through the model at once.
struct Window {
  size_t row = 0;
  int64_t start = 0;
  int64_t count = 0;
};

}  // namespace

struct SequenceModel::Parts {
  LanguageModel model;
  Tokenizer tokenizer;
  int64_t start_token;
  int64_t chunk;
  int64_t batch_tokens;

  // What `pass(tokens [1, L], layout)` -> [1, L, ...] gives for each row.
  template <class Pass>
  std::vector<Tensor> run(const std::vector<TokenList>& rows, const Pass& pass) {
    const torch::NoGradGuard no_grad;
    std::vector<Window> windows;
    for (size_t row = 0; row < rows.size(); ++row) {
      const int64_t total = std::ssize(rows[row]);
      const int64_t longest = chunk == 0 ? std::max<int64_t>(total, 1) : chunk;
      for (int64_t start = 0; start < total; start += longest) {
        windows.push_back({row, start, std::min(longest, total - start)});
      }
    }
    std::vector<std::vector<Tensor>> pieces(rows.size());
    for (size_t first = 0; first < windows.size();) {
      // Windows one after another in one row: nothing is spent on padding.
      TokenList packed;
      std::vector<int64_t> ends = {0};
      size_t end = first;
      while (end < windows.size() &&
             (end == first || std::ssize(packed) + windows[end].count <= batch_tokens)) {
        const Window& window = windows[end++];
        const auto from = rows[window.row].begin() + window.start;
        packed.insert(packed.end(), from, from + window.count);
        ends.push_back(std::ssize(packed));
      }
      BatchLayout layout;
      if (ends.size() > 2) layout.cu_seqlens = torch::tensor(ends);
      const Tensor out = pass(torch::tensor(packed).unsqueeze(0), layout)[0];
      for (size_t i = first; i < end; ++i) {
        pieces[windows[i].row].push_back(out.slice(0, ends[i - first], ends[i - first + 1]));
      }
      first = end;
    }
    std::vector<Tensor> results;
    for (const std::vector<Tensor>& row : pieces) {
      results.push_back(row.size() == 1 ? row[0] : torch::cat(row));
    }
    return results;
  }
};

SequenceModel::SequenceModel(const LanguageModel& model, const Tokenizer& tokenizer,
                             int64_t start_token, int64_t chunk, int64_t batch_tokens)
    : parts_(std::make_unique<Parts>(Parts{model, tokenizer, start_token, chunk, batch_tokens})) {
  FAVOR_CHECK(chunk == 0 || chunk >= 2, "--chunk is ", chunk, ", expected 0 or at least 2");
  FAVOR_CHECK(batch_tokens >= 1, "--batch-tokens is ", batch_tokens, ", expected at least 1");
  FAVOR_CHECK(chunk <= config().max_positions(), "--chunk is ", chunk, ", expected at most ",
              config().max_positions_text());
  parts_->model->eval();
}

SequenceModel::~SequenceModel() = default;
SequenceModel::SequenceModel(SequenceModel&&) noexcept = default;

const ModelConfig& SequenceModel::config() const {
  return parts_->model->config();
}

const Tokenizer& SequenceModel::tokenizer() const {
  return parts_->tokenizer;
}

int64_t SequenceModel::chunk() const {
  return parts_->chunk;
}

int64_t SequenceModel::batch_tokens() const {
  return parts_->batch_tokens;
}

TokenList SequenceModel::frame(std::span<const uint8_t> residues, bool reversed) const {
  TokenList tokens = {parts_->start_token};
  tokens.insert(tokens.end(), residues.begin(), residues.end());
  if (reversed) std::reverse(tokens.begin() + 1, tokens.end());
  tokens.push_back(tokenizer().eos());
  return tokens;
}

std::string SequenceModel::problem(int64_t tokens) const {
  if (chunk() > 0 || tokens <= config().max_positions()) return "";
  return favor::message(tokens, " tokens, expected at most ", config().max_positions_text());
}

int64_t SequenceModel::num_windows(int64_t tokens) const {
  return chunk() == 0 ? 1 : (tokens + chunk() - 1) / chunk();
}

std::vector<Tensor> SequenceModel::hidden(const std::vector<TokenList>& rows, int64_t layer) {
  return parts_->run(rows, [&](const Tensor& tokens, const BatchLayout& layout) {
    return parts_->model->hidden(tokens, layout, layer);
  });
}

std::vector<Tensor> SequenceModel::log_probabilities(const std::vector<TokenList>& rows) {
  return parts_->run(rows, [&](const Tensor& tokens, const BatchLayout& layout) {
    const Tensor logits = parts_->model->forward(tokens, layout);
    if (!torch::isfinite(logits).all().item<bool>()) {
      throw std::runtime_error(
          "a logit of the model is not a finite number (its weights are damaged or its training "
          "diverged)");
    }
    return logits.to(torch::kDouble).log_softmax(-1);
  });
}

}  // namespace performer
