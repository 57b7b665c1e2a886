// SPDX-License-Identifier: Apache-2.0
// The rows of the table of tasks, each written beside its readers, and what they share.
#ifndef PERFORMER_TRAIN_TASK_LIST_H_
#define PERFORMER_TRAIN_TASK_LIST_H_

#include "performer/train/task.h"

namespace performer {

Task protein_task();
Task text_task();
Task copy_task();
Task induction_task();
Task recall_task();
Task listops_task();
Task documents_task();
Task retrieval_task();
Task pathfinder_task();
Task pixels_task();
Task picture_classes_task();

/// The token that a classifier with CLS pooling reads, before a row; -1 with another pooling.
int64_t begin_token(const TrainConfig& config, const Vocabulary& vocabulary);

}  // namespace performer

#endif  // PERFORMER_TRAIN_TASK_LIST_H_
