// SPDX-License-Identifier: Apache-2.0
#include "performer/train/prefetch.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace performer {
namespace {

SequenceSet some_sequences() {
  SequenceSet sequences;
  for (int i = 0; i < 40; ++i) {
    sequences.add(std::vector<uint8_t>(static_cast<size_t>(5 + i % 13), uint8_t(5 + i % 20)));
  }
  return sequences;
}

TEST(Prefetch, BatchesAndPositionsAreThoseWithoutAThread) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const SequenceSet sequences = some_sequences();
  for (const Windowing windowing : {Windowing::kCrop, Windowing::kConcat, Windowing::kPacked}) {
    for (const size_t depth : {size_t{1}, size_t{2}, size_t{5}}) {
      BatchOptions options;
      options.objective = Objective::kMaskedLm;
      options.windowing = windowing;
      options.length = 16;
      options.tokens_per_batch = 48;
      options.seed = 3;
      TrainBatches plain(sequences, tokenizer, options);
      auto start = std::make_unique<TrainBatches>(sequences, tokenizer, options);
      // From within an epoch, through two others.
      const int64_t count = 2 * plain.batches_in_epoch() + 3;
      plain.next();
      start->seek(plain.position());
      Prefetch ahead(std::move(start), depth);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(ahead.position(), plain.position());
        const Batch expected = plain.next(), batch = ahead.next();
        ASSERT_EQ(batch.tokens, expected.tokens);
        ASSERT_EQ(batch.targets, expected.targets);
        ASSERT_EQ(batch.cu_seqlens, expected.cu_seqlens);
      }
      EXPECT_GE(plain.position().epoch, 2);
    }
  }
}

TEST(Prefetch, EndsUnusedAndWithBatchesWaiting) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const SequenceSet sequences = some_sequences();
  BatchOptions options;
  options.length = 16;
  options.tokens_per_batch = 48;
  const Prefetch unused(std::make_unique<TrainBatches>(sequences, tokenizer, options));
  EXPECT_EQ(unused.position(), BatchPosition());
  Prefetch used(std::make_unique<TrainBatches>(sequences, tokenizer, options));
  EXPECT_GT(used.next().num_tokens, 0);
}

}  // namespace
}  // namespace performer
