// SPDX-License-Identifier: Apache-2.0
// One unit of training, encoding or generating on random tokens, to be timed.
#ifndef PERFORMER_TRAIN_WORKLOAD_H_
#define PERFORMER_TRAIN_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "performer/models/memory.h"

namespace performer {

enum class WorkKind {
  kTrain,     ///< forward, loss on every token, backward, clipping, a step of AdamW
  kEncode,    ///< forward without gradient, logits of every token
  kGenerate,  ///< the logits that follow one more token, from a state
};

/// `train`, `encode`, `generate`.
std::string to_string(WorkKind kind);
/// Throws favor::Error, listing the known words.
WorkKind work_kind_from_string(std::string_view word);

struct WorkOptions {
  WorkKind kind = WorkKind::kTrain;
  ModelConfig model;
  int64_t length = 1024;  ///< tokens per row; of generation: tokens already in the state
  int64_t batch = 1;      ///< rows
  bool bfloat16 = false;  ///< Autocast around forward passes
  MemoryOptions memory;   ///< of training

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

class Workload {
 public:
  /// Makes model, optimiser and data; of generation, also reads the tokens before.
  explicit Workload(const WorkOptions& options);
  ~Workload();

  /// Tokens of one run().
  int64_t tokens() const;
  void run();

  /// Seconds in which this machine, on the same threads, reads parameters, matrices and state of
  /// streams once: the best of several passes over the very memory that run() uses.
  double read_s() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_TRAIN_WORKLOAD_H_
