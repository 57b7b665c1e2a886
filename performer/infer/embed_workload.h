// SPDX-License-Identifier: Apache-2.0
// Embedding the proteins of a file with a model of random weights, a group of them at a time, to be
// timed. Needs none of torch's headers.
#ifndef PERFORMER_INFER_EMBED_WORKLOAD_H_
#define PERFORMER_INFER_EMBED_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "performer/models/config.h"

namespace performer {

struct EmbedWorkOptions {
  ModelConfig model;
  std::string data;  ///< FASTA file; its first `count` records with a residue
  int64_t count = 2000;
  int64_t groups = 20;          ///< of the passes that all take, dealt out in turn
  int64_t batch_tokens = 8192;  ///< of a pass
  bool bfloat16 = false;        ///< Autocast around forward passes

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

class EmbedWorkload {
 public:
  /// Reads the file and makes the model. Throws favor::Error for wrong options or where the file
  /// holds too few records or gives fewer passes than groups.
  explicit EmbedWorkload(const EmbedWorkOptions& options);
  ~EmbedWorkload();

  /// Mean vectors of the next group's proteins, the first after the last. Returns its residues.
  int64_t run();
  int64_t groups() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_INFER_EMBED_WORKLOAD_H_
