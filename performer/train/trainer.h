// SPDX-License-Identifier: Apache-2.0
// The training loop: one for causal and masked language models. This header needs no torch.
#ifndef PERFORMER_TRAIN_TRAINER_H_
#define PERFORMER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "performer/train/config.h"
#include "performer/train/metrics.h"

namespace performer {

/// What the caller lends to a run.
struct TrainHooks {
  std::function<bool()> should_stop;  ///< asked after each step; true saves and ends the run
  bool terminal = false;              ///< stderr is a terminal: draw a progress bar
  std::string provenance;             ///< JSON text stored as run.json: version, command line
};

struct TrainResult {
  int64_t steps = 0;   ///< optimiser steps since the start of the run
  int64_t tokens = 0;  ///< seen since the start of the run, padding left out
  int64_t num_parameters = 0;
  double elapsed_s = 0;     ///< since the start of the run, evaluations included
  double tokens_per_s = 0;  ///< of this call, evaluations left out
  bool interrupted = false;
  std::string checkpoint;            ///< the last one
  int64_t best_step = -1;            ///< of the lowest validation loss, -1: never evaluated
  bool stopped_early = false;        ///< run.patience was over
  std::string best_checkpoint;       ///< of best_step; empty: never evaluated
  std::optional<EvalMetrics> valid;  ///< last evaluation
  std::vector<EvalMetrics> others;   ///< last evaluation of other sets, as run.eval_sets names them
  std::optional<EvalMetrics> test;   ///< at the end, unless interrupted
};

/// Trains as `config` says and leaves checkpoints in config.run.out.
///
/// A run limited by steps is a function of its configuration, its data, the number of threads and
/// the instruction set: stopped anywhere and resumed, it gives the same bits. A time limit makes
/// the learning rate follow the clock, so such a run resumes, but not bit for bit. Throws
/// favor::Error for a wrong configuration and std::runtime_error for what the outside world does, a
/// loss or gradient that is not finite included.
TrainResult train(const TrainConfig& config, const TrainHooks& hooks = {});

}  // namespace performer

#endif  // PERFORMER_TRAIN_TRAINER_H_
