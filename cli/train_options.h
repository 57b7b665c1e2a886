// SPDX-License-Identifier: Apache-2.0
// How the configuration of a run comes about: defaults, then the model of --init-from, a preset, a
// config file, and the command line, each over the one before. No torch.
#ifndef PERFORMER_CLI_TRAIN_OPTIONS_H_
#define PERFORMER_CLI_TRAIN_OPTIONS_H_

#include <string>
#include <vector>

#include "cli/command.h"
#include "performer/train/config.h"

namespace performer::cli {

struct TrainArguments {
  TrainConfig config;
  bool json = false;
  bool dry_run = false;  ///< says what the run would take; data and out may be missing
  std::string output;    ///< where the JSON goes
  std::string help;      ///< not empty when help was asked for: the text, with current values
};

/// A resumed run keeps its stored configuration; options that would change its course are an error,
/// those that only say how long, how often and with how many threads are taken.
/// Throws UsageError for a wrong command line or configuration.
TrainArguments resolve_train(const Command& command, const std::vector<std::string>& arguments);

}  // namespace performer::cli

#endif  // PERFORMER_CLI_TRAIN_OPTIONS_H_
