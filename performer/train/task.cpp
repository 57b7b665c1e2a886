// SPDX-License-Identifier: Apache-2.0
#include "performer/train/task.h"

#include <utility>

#include "favor/check.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

using favor::message;

// Enough to know frequencies by; making more would delay the start.
constexpr int64_t kBaselineExamples = 2000;

class ExampleData : public TaskData {
 public:
  ExampleData(ExampleTask task, const TrainConfig& config)
      : task_(std::move(task)), options_(config.batch_options()) {}

  std::shared_ptr<const Vocabulary> vocabulary() const override { return task_.vocabulary; }
  int64_t num_classes() const override { return task_.num_classes; }
  int64_t start_token() const override {
    return task_.start_token >= 0 ? task_.start_token : task_.vocabulary->eos();
  }

  std::string summary() const override {
    return message(task_.source, "\ntrain ", size("train"), " examples; valid ", size("valid"),
                   "; test ", size("test"));
  }
  int64_t size(const std::string& set) const override {
    const ExampleSet* examples = find(set).get();
    return examples == nullptr ? 0 : examples->size();
  }
  int64_t train_fingerprint() const override { return task_.train->fingerprint(); }

  std::unique_ptr<TrainSource> train_batches() const override {
    return std::make_unique<ExampleTrainBatches>(task_.train, task_.vocabulary->pad(), options_);
  }
  EvalSet eval_set(const std::string& set, int64_t max_tokens) const override {
    std::shared_ptr<const ExampleSet> examples = find(set);
    EvalSet result;
    if (examples == nullptr) examples = std::make_shared<NoExamples>();
    std::vector<int64_t> chosen = spread(*examples, max_tokens);
    result.size = std::ssize(chosen);
    if (task_.units && examples->size() > 0) result.units = task_.units(*examples);
    result.batches = std::make_unique<ExampleEvalBatches>(std::move(examples), std::move(chosen),
                                                          task_.vocabulary->pad(), options_);
    return result;
  }
  EmpiricalBaseline baseline() const override {
    const int64_t targets = task_.num_classes > 0 ? task_.num_classes : task_.vocabulary->size();
    return EmpiricalBaseline(count_targets(*task_.train, targets, kBaselineExamples));
  }

 private:
  struct NoExamples : ExampleSet {
    int64_t size() const override { return 0; }
    int64_t length(int64_t) const override { return 0; }
    Example example(int64_t, int64_t) const override { return {}; }
    int64_t fingerprint() const override { return 0; }
  };

  std::shared_ptr<const ExampleSet> find(const std::string& set) const {
    if (set == "train") return task_.train;
    if (set == "valid") return task_.valid;
    return set == "test" ? task_.test : nullptr;
  }

  ExampleTask task_;
  BatchOptions options_;
};

}  // namespace

int64_t begin_token(const TrainConfig& config, const Vocabulary& vocabulary) {
  return config.model.pooling == PoolingKind::kCls ? vocabulary.bos() : -1;
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> list = {protein_task(),   text_task(),           copy_task(),
                                         induction_task(), recall_task(),         listops_task(),
                                         documents_task(), retrieval_task(),      pathfinder_task(),
                                         pixels_task(),    picture_classes_task()};
  return list;
}

const Task& find_task(std::string_view name) {
  std::vector<std::string> names;
  std::string words;
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
    names.push_back(task.name);
    words += (words.empty() ? "" : ", ") + task.name;
  }
  throw favor::Error(message("task is '", name, "', expected one of ", words, " (did you mean ",
                             nearest_name(name, names), "?)"));
}

std::unique_ptr<TaskData> open_task(const TrainConfig& config,
                                    std::shared_ptr<const Vocabulary> vocabulary) {
  const Task& task = find_task(config.data.task);
  const std::string kind = vocabulary ? vocabulary->kind() : "";
  std::unique_ptr<TaskData> data = task.open(config, std::move(vocabulary));
  FAVOR_CHECK(kind.empty() || kind == data->vocabulary()->kind(), "the model's vocabulary is ",
              kind, ", expected ", data->vocabulary()->kind(), " (task ", task.name, ")");
  return data;
}

TrainConfig fitted(const TrainConfig& config, const TaskData& data) {
  TrainConfig result = config;
  result.model.vocab_size = data.vocabulary()->size();
  result.model.num_classes = data.num_classes();
  result.model.head = find_task(config.data.task).head;
  return result;
}

std::unique_ptr<TaskData> open_examples(ExampleTask task, const TrainConfig& config) {
  return std::make_unique<ExampleData>(std::move(task), config);
}

}  // namespace performer
