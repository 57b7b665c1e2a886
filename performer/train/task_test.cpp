// SPDX-License-Identifier: Apache-2.0
#include "performer/train/task.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "favor/check.h"

namespace performer {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no error";
}

TrainConfig defaults_of(const Task& task) {
  TrainConfig config;
  config.data.task = task.name;
  config.model.head = task.head;
  task.set_defaults(config);
  if (task.settle) task.settle(config);
  config.model.max_length = config.data.length;
  return config;
}

TEST(Tasks, EachIsFoundByItsNameAndHasValidDefaults) {
  std::set<std::string> names;
  for (const Task& task : tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_EQ(&find_task(task.name), &task);
    EXPECT_FALSE(task.help.empty());
    EXPECT_TRUE(task.generated || !task.input.empty()) << task.name;
    EXPECT_NO_THROW(defaults_of(task).check()) << task.name;
  }
  EXPECT_NE(error_of([] { find_task("protien"); }).find("did you mean protein?"),
            std::string::npos);
}

// What every data set owes the training loop: batches that fit the model, and the same on opening
// it again.
TEST(Tasks, GeneratedOnesGiveBatchesThatFitTheModel) {
  for (const Task& task : tasks()) {
    if (!task.generated) continue;
    SCOPED_TRACE(task.name);
    TrainConfig config = defaults_of(task);
    config.data.train_examples = 40;
    config.data.test_examples = 10;
    const auto data = open_task(config, nullptr);
    const TrainConfig model = fitted(config, *data);
    EXPECT_EQ(data->size("train"), 40);
    EXPECT_EQ(data->size("valid"), 10);
    EXPECT_EQ(data->size("ood"), 0);
    const int64_t targets =
        task.head == HeadKind::kTokens ? model.model.vocab_size : model.model.num_classes;
    ASSERT_GE(targets, 2);
    const auto train = data->train_batches();
    for (int i = 0; i < 3; ++i) {
      const Batch batch = train->next();
      EXPECT_GT(batch.num_targets, 0);
      EXPECT_LE(batch.length, config.data.length);
      EXPECT_EQ(batch.classes, task.head != HeadKind::kTokens);
      for (const int64_t token : batch.tokens) {
        ASSERT_TRUE(token >= 0 && token < model.model.vocab_size) << token;
      }
      for (const int64_t target : batch.targets) ASSERT_LT(target, targets);
    }
    const auto again = open_task(config, data->vocabulary());
    EXPECT_EQ(again->train_fingerprint(), data->train_fingerprint());
    EXPECT_EQ(again->train_batches()->next().tokens, data->train_batches()->next().tokens);
    config.data.split_seed = 1;
    EXPECT_NE(open_task(config, nullptr)->train_fingerprint(), data->train_fingerprint());
    const EvalSet valid = data->eval_set("valid", 0);
    EXPECT_EQ(valid.size, 10);
    const BaselineScore baseline = data->baseline().score(*valid.batches);
    EXPECT_GT(baseline.loss, 0);
    EXPECT_LE(baseline.loss, std::log(double(targets)) + 0.5);
  }
}

TEST(Tasks, AModelOfAnotherVocabularyIsRefused) {
  TrainConfig config = defaults_of(find_task("copy"));
  config.data.train_examples = 10;
  EXPECT_EQ(error_of([&] {
              open_task(config, word_vocabulary("symbols", {"s0", "s1"}));
            }),
            "num_symbols is 64, expected 2 (the model's vocabulary)");
  EXPECT_NE(error_of([&] { open_task(config, protein_vocabulary()); }), "no error");
}

TEST(Tasks, ProbesGenerateAndAreCausal) {
  TrainConfig config = defaults_of(find_task("recall"));
  config.data.data = "file.txt";
  EXPECT_EQ(error_of([&] { config.check(); }),
            "data is file.txt, expected none (task recall generates its examples)");
  config.data.data = "";
  config.model.causal = false;
  EXPECT_EQ(error_of([&] { config.check(); }), "causal is false, expected true (task recall)");
  config.model.causal = true;
  config.model.head = HeadKind::kClasses;
  EXPECT_NE(error_of([&] { config.check(); }), "no error");
}

TEST(Tasks, ClassifiersHaveNoLogitsToCut) {
  TrainConfig config = defaults_of(find_task("listops"));
  config.run.memory.loss_chunk = 64;
  EXPECT_EQ(error_of([&] { config.check(); }),
            "loss_chunk is 64, expected 0 with head classes (a row has the logits of its classes "
            "alone)");
}

TEST(Units, TurnALossPerTargetIntoBitsOrPerplexity) {
  const Unit bits{"bits_per_byte", true, {}, 1};
  EXPECT_DOUBLE_EQ(in_unit(bits, std::log(2.0) * 3, 1), 3);
  EXPECT_DOUBLE_EQ(in_unit(bits, std::log(2.0) * 3, 4), 0.75);
  const Unit words{"word_perplexity", false, {}, 0.5};
  EXPECT_DOUBLE_EQ(in_unit(words, 1.5, 0.5), std::exp(3.0));
  EvalScore model, other;
  model.units = {{"bits_per_byte", 3, 4}};
  other.loss = 8 * std::log(2.0);
  convert_units({bits}, model, other);
  EXPECT_DOUBLE_EQ(other.units[0].value, 2);
}

}  // namespace
}  // namespace performer
