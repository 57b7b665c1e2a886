// SPDX-License-Identifier: Apache-2.0
// trainer_state.json: where a run stands, beside its weights and its optimiser. No torch here.
#ifndef PERFORMER_TRAIN_TRAINER_STATE_H_
#define PERFORMER_TRAIN_TRAINER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "performer/data/batches.h"

namespace performer {

/// Size of the state of torch's CPU generator.
inline constexpr size_t kRngBytes = 5056;

/// What a run must know beside weights and optimiser to continue as if it had never stopped.
struct TrainerState {
  int64_t step = 0;               ///< optimiser steps done
  int64_t tokens = 0;             ///< seen so far, padding left out
  double elapsed_s = 0;           ///< spent so far, evaluations included
  BatchPosition data;             ///< next batch
  int64_t train_sequences = 0;    ///< of the training set
  int64_t train_fingerprint = 0;  ///< SequenceSet::fingerprint of the training set
  uint32_t redraw_index = 0;      ///< of the random matrices
  int64_t best_step = -1;         ///< of the lowest validation loss, -1: none yet
  double best_loss = 0;
  int64_t stale_evaluations = 0;  ///< since the lowest validation loss
  double window_loss = 0;         ///< summed over the targets since the last line of metrics
  int64_t window_targets = 0;
  std::vector<uint8_t> rng;  ///< torch's CPU generator, kRngBytes
};

nlohmann::json to_json(const TrainerState& state);

/// Reads what to_json wrote. Throws std::runtime_error naming `source` and the field for anything
/// missing, of another type or out of range.
TrainerState trainer_state_from_json(const nlohmann::json& object, const std::string& source);

}  // namespace performer

#endif  // PERFORMER_TRAIN_TRAINER_STATE_H_
