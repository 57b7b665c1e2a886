// SPDX-License-Identifier: Apache-2.0
// `performer score`: log-likelihood and perplexity of each sequence, and of each residue.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/infer_options.h"
#include "cli/sink.h"
#include "favor/check.h"
#include "performer/data/table.h"
#include "performer/infer/score.h"

namespace performer::cli {
namespace {

using favor::message;

// Records in memory at a time.
constexpr int64_t kBlockResidues = 4'000'000;

std::string sequence_line(const Records& records, int64_t i, const SequenceScore& score,
                          bool causal) {
  std::vector<std::string> fields = {records.names[i], std::to_string(records.sequences.length(i))};
  const bool good = !score.residues.empty();
  fields.push_back(good ? number_text(score.log_likelihood()) : "");
  fields.push_back(good ? number_text(score.perplexity()) : "");
  if (causal) fields.push_back(good ? number_text(score.end) : "");
  return table_line(fields, '\t');
}

std::string residue_lines(const Records& records, int64_t i, const SequenceScore& score) {
  const std::string name = table_field(records.names[i], '\t');
  const std::string letters = records.tokenizer.decode(records.sequences[i]);
  std::string text;
  for (size_t at = 0; at < score.residues.size(); ++at) {
    text += message(records.first + i + 1, "\t", name, "\t", at + 1, "\t", letters[at], "\t",
                    number_text(score.residues[at]), "\n");
  }
  return text;
}

}  // namespace

int run_score(const Command& command, const std::vector<std::string>& arguments) {
  InferOptions infer;
  std::string data;
  std::string output;
  std::string per_residue;
  std::string direction_word = "forward";
  Options options(command);
  options.add("-i,--data", data, "FASTA file, .gz or not; - is standard input");
  options.add("-o,--output", output, "file instead of standard output (TSV)");
  options.add("--per-residue", per_residue, "TSV file for the log-probability of each residue");
  options.add("--direction", direction_word,
              "causal models read forward, reverse, or both for the mean");
  infer.add_to(options);
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  Direction direction = Direction::kForward;
  try {
    infer.check();
    FAVOR_CHECK(!data.empty(), "--data is missing, expected a FASTA file or -");
    direction = direction_from_string(direction_word);
    FAVOR_CHECK(per_residue != "-" && (per_residue.empty() || per_residue != output),
                "--per-residue is ", per_residue, ", expected a file of its own");
  } catch (const favor::Error& error) {
    throw UsageError(message("score: ", error.what()));
  }
  check_writable(output, infer.force);
  check_writable(per_residue, infer.force);
  RunReport report(command, arguments, infer.quiet);
  SequenceModel model = infer.open(command);
  if (!model.causal() && direction != Direction::kForward) {
    throw UsageError(message("score: --direction is ", direction_word,
                             ", expected it with a causal model (a masked one reads both sides)"));
  }
  FastaReader reader(data);
  Sink table(output);
  std::unique_ptr<Sink> residues;
  if (!per_residue.empty()) residues = std::make_unique<Sink>(per_residue);
  std::vector<std::string> failed;
  double log_likelihood = 0;
  int64_t scored = 0;
  int64_t first = 0;
  Ticker ticker(infer.quiet);
  int64_t passes = 0;
  const auto passed = [&](int64_t count) {
    passes += count;
    if (!ticker.due()) return;
    std::fprintf(stderr, "from sequence %lld on: %lld rows passed, %.1f per second\n",
                 static_cast<long long>(first + 1), static_cast<long long>(passes),
                 double(passes) / ticker.seconds());
  };
  for (;;) {
    const Records records = read_block(reader, model.tokenizer(), kBlockResidues, first);
    if (records.size() == 0) break;
    if (first == 0) {
      // A file that holds no record leaves nothing behind.
      const std::string pseudo = model.causal() ? "" : "pseudo_";
      std::vector<std::string> head = {"name", "length", pseudo + "log_likelihood",
                                       pseudo + "perplexity"};
      if (model.causal()) head.push_back("end_log_likelihood");
      table.write(table_line(head, '\t'));
      if (residues) residues->write("number\tname\tposition\tresidue\tlog_likelihood\n");
    }
    std::vector<WorkFailure> failures;
    const std::vector<SequenceScore> scores =
        score_records(model, records, direction, failures, passed);
    for (const WorkFailure& failure : failures) {
      failed.push_back(records.label(failure.item) + ": " + failure.reason);
    }
    for (int64_t i = 0; i < records.size(); ++i) {
      table.write(sequence_line(records, i, scores[i], model.causal()));
      if (residues) residues->write(residue_lines(records, i, scores[i]));
      log_likelihood += scores[i].log_likelihood();
      scored += std::ssize(scores[i].residues);
    }
    first += records.size();
  }
  table.commit();
  if (residues) residues->commit();
  if (!infer.quiet) {
    std::fprintf(stderr, "%s: %s\n", data.c_str(), reader.counts().summary().c_str());
    std::fprintf(stderr, "%lld residues in %.2f s (%.0f per second), %s %.4f over all of them\n",
                 static_cast<long long>(scored), ticker.seconds(),
                 double(scored) / std::max(ticker.seconds(), 1e-9),
                 model.causal() ? "perplexity" : "pseudo-perplexity",
                 std::exp(-log_likelihood / std::max(double(scored), 1.0)));
  }
  report.finish();
  if (failed.empty()) return 0;
  for (const std::string& line : failed) std::fprintf(stderr, "failed: %s\n", line.c_str());
  throw std::runtime_error(message("score: ", failed.size(), " of ", first,
                                   " sequences failed; their fields are empty",
                                   infer.chunk_hint()));
}

}  // namespace performer::cli
