// SPDX-License-Identifier: Apache-2.0
#include "performer/data/rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace performer {

void corrupt(std::span<int64_t> tokens, const MaskIds& ids, double fraction,
             favor::RandomStream random, int64_t* targets) {
  std::vector<int64_t> letters;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < ids.num_letters) letters.push_back(static_cast<int64_t>(i));
  }
  if (letters.empty()) return;
  const double share = fraction * static_cast<double>(letters.size());
  const auto chosen = static_cast<size_t>(std::max<int64_t>(1, std::llround(share)));
  for (size_t i = 0; i < chosen; ++i) {
    std::swap(letters[i], letters[i + random.below(letters.size() - i)]);
    const int64_t at = letters[i];
    targets[at] = tokens[at];
    const uint64_t fate = random.below(10);
    if (fate < 8) {
      tokens[at] = ids.mask;
    } else if (fate == 8) {
      tokens[at] = static_cast<int64_t>(random.below(ids.num_standard));
    }
  }
}

int64_t window_tokens(const BatchOptions& options) {
  return options.length + (options.objective == Objective::kNextToken ? 1 : 0);
}

Window framed_window(std::span<const uint8_t> sequence, int64_t start, int64_t count,
                     const Tokenizer& tokenizer) {
  Window window;
  window.reserve(count);
  const auto last = static_cast<int64_t>(sequence.size()) + 1;
  for (int64_t i = start; i < start + count; ++i) {
    if (i == 0) {
      window.push_back(static_cast<uint8_t>(tokenizer.bos()));
    } else if (i == last) {
      window.push_back(static_cast<uint8_t>(tokenizer.eos()));
    } else {
      window.push_back(sequence[i - 1]);
    }
  }
  return window;
}

JoinedStream::JoinedStream(const SequenceSet& sequences, std::vector<int64_t> order)
    : order_(std::move(order)) {
  starts_.reserve(order_.size() + 1);
  for (const int64_t i : order_) starts_.push_back(starts_.back() + sequences.length(i) + 1);
}

Window JoinedStream::window(const SequenceSet& sequences, int64_t start, int64_t count,
                            const Tokenizer& tokenizer) const {
  Window tokens;
  tokens.reserve(count);
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), start);
  auto segment = static_cast<size_t>(after - starts_.begin()) - 1;
  for (int64_t at = start; at < start + count; ++at) {
    if (segment + 1 < starts_.size() && at == starts_[segment + 1]) ++segment;
    const int64_t offset = at - starts_[segment];
    tokens.push_back(offset == 0 ? static_cast<uint8_t>(tokenizer.eos())
                                 : sequences[order_[segment]][offset - 1]);
  }
  return tokens;
}

Batch make_batch(const std::vector<Window>& windows, const Tokenizer& tokenizer,
                 const BatchOptions& options,
                 const std::function<favor::RandomStream(int64_t)>& mask_stream) {
  const int64_t target_only = window_tokens(options) - options.length;
  const bool packed = options.windowing == Windowing::kPacked;
  const auto length_of = [&](const Window& window) { return std::ssize(window) - target_only; };
  Batch batch;
  batch.rows = packed ? 1 : std::ssize(windows);
  if (packed) batch.cu_seqlens = {0};
  for (const Window& window : windows) {
    batch.length = packed ? batch.length + length_of(window)
                          : std::max<int64_t>(batch.length, length_of(window));
    if (packed) batch.cu_seqlens.push_back(batch.length);
  }
  batch.tokens.assign(batch.rows * batch.length, tokenizer.pad());
  batch.targets.assign(batch.rows * batch.length, -1);
  batch.padding.assign(batch.rows * batch.length, 1);
  for (int64_t row = 0; row < std::ssize(windows); ++row) {
    const Window& window = windows[row];
    const int64_t count = length_of(window);
    const int64_t begin = packed ? batch.cu_seqlens[row] : row * batch.length;
    int64_t* tokens = batch.tokens.data() + begin;
    int64_t* targets = batch.targets.data() + begin;
    std::copy_n(window.begin(), count, tokens);
    std::fill_n(batch.padding.begin() + begin, count, uint8_t{0});
    if (options.objective == Objective::kNextToken) {
      std::copy_n(window.begin() + 1, count, targets);
    } else {
      const MaskIds ids{tokenizer.num_letters(), tokenizer.num_standard(), tokenizer.mask()};
      corrupt({tokens, static_cast<size_t>(count)}, ids, options.mask_fraction, mask_stream(row),
              targets);
    }
    batch.num_tokens += count;
  }
  batch.num_targets = std::count_if(batch.targets.begin(), batch.targets.end(),
                                    [](int64_t target) { return target >= 0; });
  return batch;
}

}  // namespace performer
