// SPDX-License-Identifier: Apache-2.0
// `performer train`.
#include <unistd.h>
#include <csignal>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/train_options.h"
#include "performer/train/dry_run.h"
#include "performer/train/trainer.h"

namespace performer::cli {
namespace {

using nlohmann::json;

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int signal) {
  stop_requested = 1;
  // A second signal ends the process at once.
  std::signal(signal, SIG_DFL);
}

json to_json(const EvalMetrics& metrics) {
  json object = performer::to_json(metrics.model);
  object["step"] = metrics.step;
  object["baseline"] = performer::to_json(metrics.baseline);
  return object;
}

}  // namespace

int run_train(const Command& command, const std::vector<std::string>& arguments) {
  const TrainArguments parsed = resolve_train(command, arguments);
  if (!parsed.help.empty()) {
    std::fputs(parsed.help.c_str(), stdout);
    return 0;
  }
  const TrainConfig& config = parsed.config;
  check_writable(parsed.output, config.run.force);
  RunReport report(command, arguments, config.run.quiet);
  if (!config.run.quiet) {
    std::fputs(describe(config).c_str(), stderr);
    warn_if_emulated(config.run.dtype);
  }

  if (parsed.dry_run) {
    const DryRun trial = dry_run(config);
    const bool json = parsed.json || !parsed.output.empty();
    write_result(parsed.output, json ? to_json(trial).dump(2) + "\n" : performer::describe(trial),
                 config.run.force);
    report.finish();
    return 0;
  }
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  TrainHooks hooks;
  hooks.should_stop = [] { return stop_requested != 0; };
  hooks.terminal = ::isatty(STDERR_FILENO) == 1;
  hooks.provenance = report.provenance().dump(2);
  const TrainResult result = train(config, hooks);

  if (result.interrupted && !config.run.quiet) {
    std::fprintf(stderr, "interrupted at step %lld, saved in %s; --resume auto continues\n",
                 static_cast<long long>(result.steps), result.checkpoint.c_str());
  }
  if (parsed.json || !parsed.output.empty()) {
    json object = {{"run", config.run.out},
                   {"checkpoint", result.checkpoint},
                   {"steps", result.steps},
                   {"tokens", result.tokens},
                   {"num_parameters", result.num_parameters},
                   {"elapsed_s", result.elapsed_s},
                   {"tokens_per_s", result.tokens_per_s},
                   {"interrupted", result.interrupted},
                   {"stopped_early", result.stopped_early},
                   {"best_step", result.best_step},
                   {"best_checkpoint", result.best_checkpoint}};
    if (result.valid) object["valid"] = to_json(*result.valid);
    for (const EvalMetrics& other : result.others) object[other.split] = to_json(other);
    if (result.test) object["test"] = to_json(*result.test);
    object.update(report.resources());
    write_result(parsed.output, object.dump(2) + "\n", config.run.force);
  }
  report.finish();
  return 0;
}

}  // namespace performer::cli
