// SPDX-License-Identifier: Apache-2.0
// The tasks `copy`, `induction` and `recall`.
#include <utility>

#include "favor/check.h"
#include "performer/data/probes.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

ProbeOptions probe_options(ProbeKind kind, const TrainConfig& config) {
  ProbeOptions options;
  options.kind = kind;
  options.length = config.data.length;
  options.num_symbols = config.data.num_symbols;
  options.num_pairs = config.data.num_pairs;
  return options;
}

Task probe_task(ProbeKind kind, const char* name, const char* help) {
  Task task;
  task.name = name;
  task.help = help;
  task.generated = true;
  task.set_defaults = [](TrainConfig& config) {
    config.model.dim = 64;
    config.model.num_layers = 2;
    config.model.num_heads = 2;
    config.model.ff_dim = 256;
    config.model.dropout = 0;
    config.data.length = 64;
    config.data.batch_tokens = 4096;
    config.optimizer.weight_decay = 0.01;
    config.run.max_steps = 2000;
    config.run.log_interval = 50;
    config.run.eval_interval = 500;
  };
  task.check = [kind, name](const TrainConfig& config) {
    FAVOR_CHECK(config.data.data.empty(), "data is ", config.data.data, ", expected none (task ",
                name, " generates its examples)");
    FAVOR_CHECK(config.model.causal, "causal is false, expected true (task ", name, ")");
    probe_options(kind, config).check();
  };
  task.open = [kind, name](const TrainConfig& config, std::shared_ptr<const Vocabulary> known) {
    const ProbeOptions options = probe_options(kind, config);
    const auto make = [&](int64_t num_examples, uint64_t set) {
      ProbeOptions one = options;
      one.num_examples = num_examples;
      one.fresh = set == 0;
      one.seed = 3 * config.data.split_seed + set;
      return make_probe(one);
    };
    ExampleTask probe;
    probe.vocabulary = known ? known : symbol_vocabulary(options.num_symbols);
    FAVOR_CHECK(probe.vocabulary->num_letters() == options.num_symbols, "num_symbols is ",
                options.num_symbols, ", expected ", probe.vocabulary->num_letters(),
                " (the model's vocabulary)");
    probe.train = make(config.data.train_examples, 0);
    probe.valid = make(config.data.test_examples, 1);
    probe.test = make(config.data.test_examples, 2);
    probe.source = favor::message("task ", name, ", ", options.num_symbols,
                                  " symbols, generated anew in every epoch");
    return open_examples(std::move(probe), config);
  };
  return task;
}

}  // namespace

Task copy_task() {
  return probe_task(ProbeKind::kCopy, "copy", "probe: repeat a row of random symbols");
}

Task induction_task() {
  return probe_task(ProbeKind::kInduction, "induction",
                    "probe: what followed the marker the first time");
}

Task recall_task() {
  return probe_task(ProbeKind::kRecall, "recall", "probe: the values of keys seen before (MQAR)");
}

}  // namespace performer
