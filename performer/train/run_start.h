// SPDX-License-Identifier: Apache-2.0
// The folder of a run before its first step. No torch here.
#ifndef PERFORMER_TRAIN_RUN_START_H_
#define PERFORMER_TRAIN_RUN_START_H_

#include <functional>
#include <optional>
#include <string>

#include "performer/train/config.h"

namespace performer {

/// The checkpoint to continue from, if any; `warn` hears of damaged ones that are passed over.
/// Changes nothing on disk: what else a run needs may still turn out to be missing. Throws
/// std::runtime_error when the folder, or a checkpoint that was named, cannot be used.
std::optional<std::string> check_folder(const RunConfig& run,
                                        const std::function<void(const std::string&)>& warn);

/// Leaves the folder of a new run ready to be written to.
void prepare_folder(const RunConfig& run);

}  // namespace performer

#endif  // PERFORMER_TRAIN_RUN_START_H_
