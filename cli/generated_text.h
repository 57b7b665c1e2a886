// SPDX-License-Identifier: Apache-2.0
// Generated sequences as FASTA or JSON lines, written in order, a long one piece by piece.
#ifndef PERFORMER_CLI_GENERATED_TEXT_H_
#define PERFORMER_CLI_GENERATED_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/sink.h"

namespace performer::cli {

struct TextOptions {
  bool json = false;
  bool log_probs = false;
};

/// A sequence, or what there is of it so far.
struct GeneratedText {
  std::string name;
  int64_t begin = 1;           ///< place of the first letter in its stream
  int64_t prompt_letters = 0;  ///< of `letters`, given and not drawn
  std::string letters;
  std::vector<double> log_probs;  ///< of the letters drawn
  std::optional<double> end;      ///< log-probability of the end token, once drawn
};

/// Writes whole sequences in the order of their numbers, whenever they are complete, and drops
/// them. With `pieces`, for a single one, letters are written as they come: FASTA then has length,
/// end and mean in no header, and JSON one object for every 4096 letters, of which the last says
/// how it ended.
class GeneratedWriter {
 public:
  GeneratedWriter(Sink& sink, const TextOptions& options, std::vector<GeneratedText> sequences,
                  bool pieces);

  void add(int64_t sequence, char letter, double log_prob);
  void end(int64_t sequence, double log_prob);
  /// No more comes for this one.
  void complete(int64_t sequence);

  /// Over all drawn tokens so far, ends included.
  double mean_log_prob() const;
  int64_t drawn() const { return drawn_; }

 private:
  void write_whole(const GeneratedText& text);
  void write_piece(bool last);

  Sink& sink_;
  TextOptions options_;
  std::vector<GeneratedText> sequences_;
  std::vector<bool> complete_;
  bool pieces_;
  size_t next_ = 0;  // sequence to be written
  bool headed_ = false;
  double sum_ = 0;
  int64_t drawn_ = 0;
};

}  // namespace performer::cli

#endif  // PERFORMER_CLI_GENERATED_TEXT_H_
