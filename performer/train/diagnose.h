// SPDX-License-Identifier: Apache-2.0
// The diagnostics of a model's layers on a sample of data, and what they mean in words.
#ifndef PERFORMER_TRAIN_DIAGNOSE_H_
#define PERFORMER_TRAIN_DIAGNOSE_H_

#include <string>
#include <vector>

#include "performer/data/batches.h"
#include "performer/models/models.h"
#include "performer/train/metrics.h"

namespace performer {

/// One row per layer: the mean over up to 8 sequences from the first batches. Layers with random
/// features only. Runs without dropout, draws no random number, restores the model's mode.
std::vector<LayerMetrics> diagnose(LanguageModel& model, const EvalSource& batches, int64_t step);

/// A warning when the features do no better than the mean of all values; empty when they do, or
/// when attention is nearly uniform anyway. Only for maps that estimate softmax.
std::string collapse_warning(const LayerMetrics& metrics, const AttentionOptions& attention);

}  // namespace performer

#endif  // PERFORMER_TRAIN_DIAGNOSE_H_
