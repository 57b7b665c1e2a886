// SPDX-License-Identifier: Apache-2.0
// The classified tasks, as the Long Range Arena (Tay et al. 2021) has them: `listops`, `documents`,
// `retrieval`, `pathfinder`.
#include <array>
#include <utility>

#include "favor/check.h"
#include "performer/data/labelled.h"
#include "performer/data/listops.h"
#include "performer/data/pathfinder.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

using favor::message;

void set_classifier(TrainConfig& config) {
  config.model.causal = false;
  config.model.dropout = 0.1;
  config.data.windowing = Windowing::kCrop;
  config.optimizer.weight_decay = 0.1;
}

void check_rows(const TrainConfig& config) {
  FAVOR_CHECK(config.data.windowing != Windowing::kPacked,
              "windowing is packed, expected crop or "
              "concat (task ",
              config.data.task, " has one example a row)");
}

std::string lines(std::string first, const std::string& second) {
  return first + (second.empty() ? "" : "; " + second);
}

std::unique_ptr<TaskData> open_labelled(const TrainConfig& config,
                                        std::shared_ptr<const Vocabulary> vocabulary,
                                        LabelledSplits splits, const std::string& source) {
  ExampleTask task;
  task.vocabulary = std::move(vocabulary);
  task.num_classes = std::ssize(splits.classes);
  std::string names;
  for (const std::string& name : splits.classes) names += (names.empty() ? "" : ", ") + name;
  task.source = lines(message(source, "; classes ", names), splits.cut_summary(config.data.length));
  task.train = std::move(splits.train);
  task.valid = std::move(splits.valid);
  task.test = std::move(splits.test);
  return open_examples(std::move(task), config);
}

// Kept lengths scale with --length: above a quarter of it, as 500 is of 2000.
ListOpsOptions listops_options(const TrainConfig& config) {
  ListOpsOptions options;
  options.below_length = config.data.length;
  options.above_length = config.data.length / 4;
  return options;
}

}  // namespace

Task listops_task() {
  Task task;
  task.name = "listops";
  task.help = "classify: the value of nested MIN, MAX, MED, SM (Long Range Arena)";
  task.input = "a folder with basic_train.tsv, basic_val.tsv and basic_test.tsv";
  task.generated = true;
  task.head = HeadKind::kClasses;
  task.set_defaults = [](TrainConfig& config) {
    set_classifier(config);
    config.data.length = 2000;
    config.data.batch_tokens = 64000;
    config.data.train_examples = 96000;
    config.data.test_examples = 2000;
    config.run.eval_tokens = 0;
  };
  task.check = [](const TrainConfig& config) {
    check_rows(config);
    if (!config.data.data.empty()) return;
    FAVOR_CHECK(config.data.length >= 16, "length is ", config.data.length,
                ", expected at least 16 (task listops)");
    listops_options(config).check();
  };
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    const auto vocabulary = known ? known : listops_vocabulary();
    const int64_t begin = begin_token(config, *listops_vocabulary());
    const std::string& folder = config.data.data;
    if (!folder.empty()) {
      return open_labelled(config, vocabulary, read_listops(folder, config.data.length, begin),
                           folder);
    }
    const ListOpsOptions options = listops_options(config);
    const std::array<int64_t, 3> counts = {config.data.train_examples, config.data.test_examples,
                                           config.data.test_examples};
    return open_labelled(config, vocabulary,
                         generate_listops(options, counts, config.data.split_seed, begin),
                         message("ListOps, generated, more than ", options.above_length,
                                 " and fewer than ", options.below_length, " tokens"));
  };
  return task;
}

Task documents_task() {
  Task task;
  task.name = "documents";
  task.help = "classify: documents as bytes, by folder (Long Range Arena: IMDB)";
  task.input = "a folder with train/<class>/*.txt and test/<class>/*.txt";
  task.head = HeadKind::kClasses;
  task.set_defaults = [](TrainConfig& config) {
    set_classifier(config);
    config.data.valid_fraction = 0.1;
    config.run.eval_tokens = 0;
  };
  task.check = check_rows;
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    const auto vocabulary = known ? known : byte_vocabulary();
    return open_labelled(
        config, vocabulary,
        read_documents(config.data.data, config.data.length,
                       begin_token(config, *byte_vocabulary()), config.split_options()),
        config.data.data);
  };
  return task;
}

Task retrieval_task() {
  Task task;
  task.name = "retrieval";
  task.help = "classify: do two documents belong together (Long Range Arena: AAN)";
  task.input = "a folder with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv";
  task.head = HeadKind::kPairs;
  task.set_defaults = [](TrainConfig& config) {
    set_classifier(config);
    config.run.eval_tokens = 0;
  };
  task.check = check_rows;
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    const auto vocabulary = known ? known : byte_vocabulary();
    return open_labelled(
        config, vocabulary,
        read_pairs(config.data.data, config.data.length, begin_token(config, *byte_vocabulary())),
        config.data.data);
  };
  return task;
}

Task pathfinder_task() {
  Task task;
  task.name = "pathfinder";
  task.help = "classify: does a dashed path join two dots (Long Range Arena)";
  task.input = "a folder with metadata/ and imgs/";
  task.generated = true;
  task.head = HeadKind::kClasses;
  task.set_defaults = [](TrainConfig& config) {
    set_classifier(config);
    config.model.pooling = PoolingKind::kMean;
    config.data.batch_tokens = 65536;
    config.data.test_examples = 2000;
    config.run.eval_tokens = 0;
  };
  // A row is a picture.
  task.settle = [](TrainConfig& config) {
    config.data.length = config.data.image_size * config.data.image_size +
                         (config.model.pooling == PoolingKind::kCls ? 1 : 0);
  };
  task.check = [](const TrainConfig& config) {
    check_rows(config);
    PathfinderOptions::of_size(config.data.image_size, config.data.contour_length).check();
  };
  task.open = [](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    ExampleTask example;
    example.vocabulary = known ? known : byte_vocabulary();
    example.num_classes = 2;
    const int64_t begin = begin_token(config, *byte_vocabulary());
    const int64_t size = config.data.image_size;
    PathfinderSplits splits;
    if (config.data.data.empty()) {
      const auto options = PathfinderOptions::of_size(size, config.data.contour_length);
      const auto make = [&](int64_t count, uint64_t set) {
        return pathfinder_set(options, count, 3 * config.data.split_seed + set, begin);
      };
      splits = {make(config.data.train_examples, 0), make(config.data.test_examples, 1),
                make(config.data.test_examples, 2)};
      example.source = message("Pathfinder, generated, ", size, " x ", size, " pixels, paths of ",
                               options.contour_length, " paddles");
    } else {
      splits = read_pathfinder(config.data.data, size, begin);
      example.source = config.data.data;
    }
    example.train = std::move(splits.train);
    example.valid = std::move(splits.valid);
    example.test = std::move(splits.test);
    return open_examples(std::move(example), config);
  };
  return task;
}

}  // namespace performer
