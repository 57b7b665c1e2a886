// SPDX-License-Identifier: Apache-2.0
// Tasks: what is read, which tokens it becomes, what is predicted, in which units it is judged. The
// training loop and the evaluations know a task by this interface alone. No torch here.
#ifndef PERFORMER_TRAIN_TASK_H_
#define PERFORMER_TRAIN_TASK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/batches.h"
#include "performer/data/examples.h"
#include "performer/data/vocabulary.h"
#include "performer/train/config.h"
#include "performer/train/metrics.h"

namespace performer {

/// A set to evaluate on.
struct EvalSet {
  std::unique_ptr<EvalSource> batches;
  int64_t size = 0;         ///< sequences or examples
  std::vector<Unit> units;  ///< beside loss and accuracy
};

/// A task with its data read.
class TaskData {
 public:
  virtual ~TaskData() = default;

  virtual std::shared_ptr<const Vocabulary> vocabulary() const = 0;
  /// Of the classifier; 0 for tasks that predict tokens.
  virtual int64_t num_classes() const { return 0; }
  /// Opens a stream in generation.
  virtual int64_t start_token() const = 0;
  /// What was read, and the sizes of the sets.
  virtual std::string summary() const = 0;
  /// Sequences or examples of `train`, `valid`, `test` or `ood`; 0 for a set it does not have.
  virtual int64_t size(const std::string& set) const = 0;
  /// Hash of the training set, not negative.
  virtual int64_t train_fingerprint() const = 0;
  /// As long as this object lives.
  virtual std::unique_ptr<TrainSource> train_batches() const = 0;
  /// A set, or about `max_tokens` tokens of it (0: all). Lives as long as this object. May be
  /// empty.
  virtual EvalSet eval_set(const std::string& set, int64_t max_tokens) const = 0;
  /// From the targets of the training set.
  virtual EmpiricalBaseline baseline() const = 0;
};

/// A row of the table of tasks.
struct Task {
  std::string name;
  std::string help;
  std::string input;       ///< what --data names, in words
  bool generated = false;  ///< makes its own examples where --data is missing
  HeadKind head = HeadKind::kTokens;
  /// Sets what differs from the defaults of TrainConfig; presets and options come after.
  std::function<void(TrainConfig&)> set_defaults;
  /// Sets what follows from other fields, such as the length of a picture's row; may be empty.
  std::function<void(TrainConfig&)> settle;
  /// Throws favor::Error for fields that do not fit the task; may be empty.
  std::function<void(const TrainConfig&)> check;
  /// Reads or generates. `vocabulary` is that of a trained model, or null: make one. Throws
  /// std::runtime_error naming file and place.
  std::function<std::unique_ptr<TaskData>(const TrainConfig&, std::shared_ptr<const Vocabulary>)>
      open;
};

/// Every task, each once.
const std::vector<Task>& tasks();
/// Throws favor::Error naming the nearest task.
const Task& find_task(std::string_view name);

/// Opens the task of `config` and checks that `vocabulary` (may be null) is of its kind.
std::unique_ptr<TaskData> open_task(const TrainConfig& config,
                                    std::shared_ptr<const Vocabulary> vocabulary);

/// `config` with the sizes of the model that the data decides.
TrainConfig fitted(const TrainConfig& config, const TaskData& data);

/// What a task made of example sets consists of; valid and test may be null.
struct ExampleTask {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<const ExampleSet> train, valid, test;
  int64_t num_classes = 0;
  int64_t start_token = -1;                                   ///< -1: the end token
  std::string source;                                         ///< first line of the summary
  std::function<std::vector<Unit>(const ExampleSet&)> units;  ///< may be empty
};
std::unique_ptr<TaskData> open_examples(ExampleTask task, const TrainConfig& config);

}  // namespace performer

#endif  // PERFORMER_TRAIN_TASK_H_
