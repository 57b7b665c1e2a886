// SPDX-License-Identifier: Apache-2.0
#include "performer/train/trainer.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/nn/recompute.h"
#include "performer/train/checkpoint.h"
#include "performer/train/diagnose.h"
#include "performer/train/evaluate.h"
#include "performer/train/freed_memory.h"
#include "performer/train/optimizer.h"
#include "performer/train/prefetch.h"
#include "performer/train/run_folder.h"
#include "performer/train/run_log.h"
#include "performer/train/run_start.h"
#include "performer/train/schedule.h"
#include "performer/train/step.h"
#include "performer/train/task.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<uint8_t> bytes_of(const torch::Tensor& tensor) {
  const auto* bytes = tensor.data_ptr<uint8_t>();
  return {bytes, bytes + tensor.numel()};
}

// A resumed run has its weights already: their first source may be gone.
LanguageModel make_model(const TrainConfig& config, bool resumed) {
  torch::manual_seed(config.run.seed);
  LanguageModel model(config.model);
  if (!resumed && !config.run.init_from.empty()) {
    const std::string folder = model_folder(config.run.init_from);
    // Matrices move along only where they are the very same kind; otherwise they are drawn.
    TrainConfig source;
    source.model = read_model_config(folder).config;
    bool same = true;
    for (const Field& field : train_fields()) {
      if (field.group == "Attention") same = same && field.text(source) == field.text(config);
    }
    load_weights((fs::path(folder) / "model.safetensors").string(), model, same);
  }
  return model;
}

// The vocabulary to go on with: of the checkpoint, or of the weights to start from.
std::shared_ptr<const Vocabulary> known_vocabulary(const TrainConfig& config,
                                                   const std::optional<std::string>& checkpoint) {
  if (!checkpoint && config.run.init_from.empty()) return nullptr;
  const std::string folder = checkpoint ? *checkpoint : model_folder(config.run.init_from);
  return load_vocabulary(read_model_config(folder).vocabulary, folder);
}

// A set that is evaluated along with `valid`.
struct OtherSet {
  std::string name;
  EvalSet set;
};

class Trainer {
 public:
  Trainer(const TrainConfig& config, std::unique_ptr<TaskData> data, const TrainHooks& hooks,
          bool resumed)
      : config_(config),
        hooks_(hooks),
        progress_(config.run.quiet, hooks.terminal),
        data_(std::move(data)),
        train_fingerprint_(data_->train_fingerprint()),
        batches_(data_->train_batches()),
        valid_(data_->eval_set("valid", config.run.eval_tokens)),
        baseline_(data_->baseline()),
        model_(make_model(config, resumed)),
        optimizer_(make_optimizer(model_, config.optimizer)) {
    model_->set_memory(config.run.memory);
    give_back_freed_memory(config.run.memory, config.model);
    progress_.say(data_->summary());
    for (const torch::Tensor& parameter : model_->parameters()) {
      result_.num_parameters += parameter.numel();
    }
    progress_.say(message(result_.num_parameters, " parameters, ", at::get_num_threads(),
                          " threads, ", batches_->batches_in_epoch(), " batches per epoch"));
    FAVOR_CHECK(config.run.patience == 0 || valid_.size > 0, "patience is ", config.run.patience,
                ", expected 0 without a sequence to validate on");
    for (const std::string& name : config.other_eval_sets()) {
      FAVOR_CHECK(data_->size(name) > 0, "eval_sets names ", name, ", expected a set that ",
                  config.data.data, " has (`performer data prepare` can hold out an ood set)");
      others_.push_back({name, data_->eval_set(name, config.run.eval_tokens)});
    }
  }

  // What follows a checkpoint must not depend on when it was written, so nothing is reset here.
  void resume(const std::string& checkpoint) {
    state_ = load_checkpoint(checkpoint, model_, optimizer_);
    if (state_.train_sequences != data_->size("train") ||
        state_.train_fingerprint != train_fingerprint_) {
      throw std::runtime_error(message(
          "train: ", config_.data.data, " gives ", data_->size("train"),
          " training sequences with fingerprint ", train_fingerprint_, ", expected ",
          state_.train_sequences, " with ", state_.train_fingerprint, " (those of ", checkpoint,
          "; a run goes on with the data it began with, --init-from takes its weights to others)"));
    }
    batches_->seek(state_.data);
    set_random_state(torch::tensor(state_.rng, torch::kUInt8));
    last_checkpoint_ = checkpoint;
    saved_step_ = state_.step;
    progress_.say(message("resumed from ", checkpoint));
    // Left in place they would outlive, as the newest ones, what this run is about to save.
    std::string removed;
    for (const int64_t step : checkpoint_steps(config_.run.out)) {
      if (step <= state_.step) continue;
      fs::remove_all(checkpoint_path(config_.run.out, step));
      removed += message(" ", step);
    }
    if (!removed.empty()) progress_.say("removed the checkpoints of later steps:" + removed);
  }

  TrainResult run(bool resumed) {
    RunLog log(config_.run.out, resumed ? state_.step : -1, config_.run.tensorboard);
    log_ = &log;
    start_ = Clock::now();
    earlier_s_ = state_.elapsed_s;
    const int64_t first_tokens = state_.tokens;
    window_start_ = start_;
    window_first_token_ = state_.tokens;

    prefetch_ = std::make_unique<Prefetch>(std::move(batches_));
    model_->train();
    while (!over()) {
      step();
      const bool due = is_due(config_.run.eval_interval);
      const bool best = due && validate();
      if (due) state_.stale_evaluations = best ? 0 : state_.stale_evaluations + 1;
      if (is_due(config_.run.diagnostics_interval < 0 ? config_.run.eval_interval
                                                      : config_.run.diagnostics_interval)) {
        diagnose_layers();
      }
      if (best || is_due(config_.run.save_interval)) {
        save();
      }
      if (hooks_.should_stop && hooks_.should_stop()) {
        result_.interrupted = true;
        break;
      }
    }
    const double trained_s = seconds_since(start_) - paused_s_;
    result_.tokens_per_s = trained_s > 0 ? double(state_.tokens - first_tokens) / trained_s : 0;
    finish();
    return result_;
  }

 private:
  double elapsed_s() const { return earlier_s_ + seconds_since(start_); }

  double progress() const { return run_progress(config_.run, state_.step, elapsed_s()); }

  bool is_due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }

  bool out_of_patience() const {
    return config_.run.patience > 0 && state_.stale_evaluations >= config_.run.patience;
  }

  bool over() const {
    return state_.step >= config_.run.max_steps || out_of_patience() ||
           (config_.run.max_minutes > 0 && elapsed_s() >= 60 * config_.run.max_minutes);
  }

  void step() {
    std::vector<Batch> batches;
    int64_t num_targets = 0;
    while (std::ssize(batches) < config_.optimizer.accumulate) {
      Batch batch = prefetch_->next();
      // Masks may leave a small batch without a target.
      if (batch.num_targets == 0) continue;
      num_targets += batch.num_targets;
      state_.tokens += batch.num_tokens;
      batches.push_back(std::move(batch));
    }
    lr_ = learning_rate(config_.optimizer, state_.step, progress());
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(lr_);

    optimizer_.zero_grad();
    double loss = 0;
    for (const Batch& batch : batches) {
      const BatchTensors tensors = to_tensors(batch, config_.model.causal);
      loss += add_gradients(model_, tensors, double(num_targets), config_.run.dtype == "bfloat16");
      if (!std::isfinite(loss)) stop_not_finite("loss", loss, state_.step + 1);
    }
    grad_norm_ = gradient_norm(optimizer_);
    if (!std::isfinite(grad_norm_)) stop_not_finite("gradient norm", grad_norm_, state_.step + 1);
    clipped_step(optimizer_, grad_norm_, config_.optimizer.clip);

    ++state_.step;
    state_.data = prefetch_->position();
    state_.window_loss += loss;
    state_.window_targets += num_targets;
    const int64_t redraw = config_.model.attention.redraw_interval;
    if (has_random_matrices(config_.model.attention.method) && redraw > 0 &&
        state_.step % redraw == 0) {
      model_->redraw(++state_.redraw_index);
    }
    trimmer_.step();
    if (state_.step % config_.run.log_interval == 0) log_step();
  }

  [[noreturn]] void stop_not_finite(const std::string& what, double value, int64_t step) const {
    throw std::runtime_error(message(
        "train: ", what, " is ", value, " in step ", step, ", expected a finite number", " (lr ",
        lr_, "; last good checkpoint: ", last_checkpoint_.empty() ? "none" : last_checkpoint_,
        ")"));
  }

  // A checkpoint exists to be continued from, which weights that have diverged cannot be.
  void check_parameters() const {
    for (const auto& item : model_->named_parameters()) {
      const torch::Tensor values = item.value().detach();
      const torch::Tensor bad = values.masked_select(values.isfinite().logical_not());
      if (bad.numel() > 0) {
        stop_not_finite("parameter " + item.key(), bad[0].item<double>(), state_.step);
      }
    }
  }

  void log_step() {
    TrainMetrics metrics;
    metrics.step = state_.step;
    metrics.tokens = state_.tokens;
    metrics.loss = state_.window_loss / double(state_.window_targets);
    metrics.lr = lr_;
    metrics.grad_norm = grad_norm_;
    metrics.elapsed_s = elapsed_s();
    metrics.peak_memory_bytes = peak_memory_bytes();
    const double window_s = std::max(seconds_since(window_start_), 1e-9);
    metrics.tokens_per_s = double(state_.tokens - window_first_token_) / window_s;
    log_->write(metrics);
    progress_.update(metrics, progress(), metrics.elapsed_s);
    state_.window_loss = 0;
    state_.window_targets = 0;
    window_start_ = Clock::now();
    window_first_token_ = state_.tokens;
  }

  // Time spent on anything but steps, kept out of the tokens per second.
  template <class Body>
  auto paused(Body body) {
    const auto start = Clock::now();
    auto value = body();
    const auto spent = Clock::now() - start;
    paused_s_ += std::chrono::duration<double>(spent).count();
    window_start_ += spent;
    return value;
  }

  EvalMetrics measure(const std::string& split, const EvalSet& set) {
    return paused([&] {
      const BaselineScore baseline = baseline_.score(*set.batches);
      EvalMetrics metrics;
      metrics.step = state_.step;
      metrics.split = split;
      metrics.model = evaluate(model_, *set.batches, set.units);
      if (!std::isfinite(metrics.model.loss)) {
        stop_not_finite(split + " loss", metrics.model.loss, state_.step);
      }
      metrics.baseline = {
          baseline.num_targets, baseline.loss, baseline.perplexity, baseline.accuracy, {}};
      convert_units(set.units, metrics.model, metrics.baseline);
      log_->write(metrics);
      progress_.say(message(split, " at step ", state_.step, ": ",
                            describe(metrics, config_.model.head != HeadKind::kTokens)));
      return metrics;
    });
  }

  void diagnose_layers() {
    paused([&] {
      for (const LayerMetrics& metrics : diagnose(model_, *valid_.batches, state_.step)) {
        log_->write(metrics);
        const std::string warning = collapse_warning(metrics, config_.model.attention);
        if (!warning.empty() && warned_layers_.insert(metrics.layer).second) {
          progress_.say(warning);
        }
      }
      return 0;
    });
  }

  // Returns whether the validation loss is the lowest so far.
  bool validate() {
    result_.others.clear();
    for (const OtherSet& other : others_) {
      result_.others.push_back(measure(other.name, other.set));
    }
    if (valid_.size == 0) return false;
    result_.valid = measure("valid", valid_);
    const double loss = result_.valid->model.loss;
    if (state_.best_step >= 0 && loss >= state_.best_loss) return false;
    state_.best_step = state_.step;
    state_.best_loss = loss;
    return true;
  }

  void save() {
    if (saved_step_ == state_.step) return;
    check_parameters();
    paused([&] {
      state_.elapsed_s = elapsed_s();
      state_.rng = bytes_of(random_state());
      state_.data = prefetch_->position();
      state_.train_sequences = data_->size("train");
      state_.train_fingerprint = train_fingerprint_;
      last_checkpoint_ = save_checkpoint(
          config_.run.out, model_, {config_.data.task, data_->vocabulary(), data_->start_token()},
          optimizer_, state_);
      saved_step_ = state_.step;
      prune_checkpoints(config_.run.out, config_.run.keep_checkpoints, state_.best_step);
      return 0;
    });
  }

  void finish() {
    const bool validated = result_.valid && result_.valid->step == state_.step;
    if (!result_.interrupted && !validated) validate();
    save();
    result_.stopped_early = out_of_patience();
    if (state_.best_step >= 0) {
      result_.best_checkpoint = checkpoint_path(config_.run.out, state_.best_step);
    }
    if (result_.stopped_early) {
      progress_.say(message("stopped at step ", state_.step, ": no lower validation loss in ",
                            state_.stale_evaluations, " evaluations; the best checkpoint is ",
                            result_.best_checkpoint));
    }
    if (!result_.interrupted && data_->size("test") > 0) {
      result_.test = measure("test", data_->eval_set("test", config_.run.test_tokens));
    }
    result_.steps = state_.step;
    result_.tokens = state_.tokens;
    result_.elapsed_s = elapsed_s();
    result_.checkpoint = last_checkpoint_;
    result_.best_step = state_.best_step;
  }

  TrainConfig config_;
  TrainHooks hooks_;
  Progress progress_;
  std::unique_ptr<TaskData> data_;
  int64_t train_fingerprint_;
  std::unique_ptr<TrainSource> batches_;
  EvalSet valid_;
  std::vector<OtherSet> others_;
  EmpiricalBaseline baseline_;
  LanguageModel model_;
  torch::optim::AdamW optimizer_;
  std::unique_ptr<Prefetch> prefetch_;  // of batches_, once the run goes on
  std::set<int64_t> warned_layers_;
  HoleTrimmer trimmer_;
  RunLog* log_ = nullptr;
  TrainResult result_;
  TrainerState state_;
  std::string last_checkpoint_;
  int64_t saved_step_ = -1;
  double lr_ = 0;
  double grad_norm_ = 0;
  Clock::time_point start_;
  Clock::time_point window_start_;
  int64_t window_first_token_ = 0;
  double earlier_s_ = 0;
  double paused_s_ = 0;
};

}  // namespace

TrainResult train(const TrainConfig& config, const TrainHooks& hooks) {
  config.check();
  const Task& task = find_task(config.data.task);
  FAVOR_CHECK(task.generated || !config.data.data.empty(), "--data is empty, expected ",
              task.input);
  FAVOR_CHECK(!config.run.out.empty(), "--out is empty, expected a folder for the run");
  if (config.run.threads > 0) at::set_num_threads(static_cast<int>(config.run.threads));
  std::optional<std::string> checkpoint;
  {
    Progress progress(config.run.quiet, hooks.terminal);
    checkpoint = check_folder(config.run,
                              [&](const std::string& text) { progress.say("warning: " + text); });
  }
  std::unique_ptr<TaskData> data = open_task(config, known_vocabulary(config, checkpoint));
  const TrainConfig run_config = fitted(config, *data);
  Trainer trainer(run_config, std::move(data), hooks, checkpoint.has_value());
  if (checkpoint) {
    trainer.resume(*checkpoint);
  } else {
    prepare_folder(config.run);
  }
  const fs::path out = config.run.out;
  write_file_atomically((out / "config.json").string(), to_json(run_config).dump(2) + "\n");
  if (!hooks.provenance.empty()) {
    write_file_atomically((out / "run.json").string(), hooks.provenance + "\n");
  }
  return trainer.run(checkpoint.has_value());
}

}  // namespace performer
