// SPDX-License-Identifier: Apache-2.0
#include "performer/train/run_start.h"

#include <filesystem>
#include <stdexcept>

#include "favor/check.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

bool holds_run(const fs::path& out) {
  return fs::exists(out / "config.json") || fs::exists(out / "metrics.jsonl") ||
         !checkpoint_steps(out.string()).empty();
}

bool lies_in(const std::string& path, const fs::path& folder) {
  const fs::path inner = fs::weakly_canonical(fs::absolute(path));
  const fs::path outer = fs::weakly_canonical(fs::absolute(folder));
  const std::string relative = inner.lexically_relative(outer).string();
  return !relative.empty() && !relative.starts_with("..");
}

}  // namespace

std::optional<std::string> check_folder(const RunConfig& run,
                                        const std::function<void(const std::string&)>& warn) {
  const fs::path out = run.out;
  std::optional<std::string> checkpoint;
  if (run.resume == "auto") {
    checkpoint = newest_checkpoint(run.out, warn);
    if (!checkpoint && !checkpoint_steps(run.out).empty()) {
      throw std::runtime_error(message("--resume auto: all checkpoints in ", run.out,
                                       " are damaged, expected a complete one (--force without "
                                       "--resume starts over)"));
    }
  } else if (!run.resume.empty()) {
    if (const auto problem = checkpoint_problem(run.resume)) {
      throw std::runtime_error(
          message("--resume: ", run.resume, " is not a complete checkpoint: ", *problem));
    }
    checkpoint = run.resume;
  }
  if (checkpoint) return checkpoint;
  if (fs::exists(out) && !fs::is_directory(out)) {
    throw std::runtime_error(message("--out: ", run.out, " is a file, expected a folder"));
  }
  if (holds_run(out) && run.resume.empty()) {
    if (!run.force) {
      throw std::runtime_error(message("--out: ", run.out,
                                       " holds a run already, expected a new folder (--resume auto "
                                       "continues it, --force replaces it)"));
    }
    if (!run.init_from.empty() && lies_in(run.init_from, out)) {
      throw std::runtime_error(message("--init-from: ", run.init_from, " lies in --out ", run.out,
                                       ", which --force would replace, expected another folder"));
    }
  }
  return std::nullopt;
}

void prepare_folder(const RunConfig& run) {
  const fs::path out = run.out;
  if (holds_run(out) && run.resume.empty()) {
    for (const int64_t step : checkpoint_steps(run.out)) {
      fs::remove_all(checkpoint_path(run.out, step));
    }
    for (const char* name : {"config.json", "metrics.jsonl", "run.json"}) fs::remove(out / name);
  }
  std::error_code error;
  fs::create_directories(out, error);
  if (error) {
    throw std::runtime_error(message("--out: ", run.out, " cannot be created: ", error.message()));
  }
}

}  // namespace performer
