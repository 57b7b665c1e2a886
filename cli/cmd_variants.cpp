// SPDX-License-Identifier: Apache-2.0
// `performer variants`: a table of mutants comes back with a score in each row.
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "cli/infer_options.h"
#include "favor/check.h"
#include "performer/data/table.h"
#include "performer/infer/records.h"
#include "performer/infer/variants.h"

namespace performer::cli {
namespace {

using favor::message;

struct VariantOptions {
  std::string data;
  std::string sequence;
  std::string wild_type;
  std::string output;
  std::string scoring;
  std::string direction = "forward";
  std::string mutant_column = "mutant";
  std::string sequence_column = "mutated_sequence";
  std::string score_column = "performer_score";
  int64_t offset = 0;
  bool strict = false;
};

std::string wild_type_of(const VariantOptions& options) {
  if (!options.sequence.empty()) {
    FastaCounts changes;
    std::string residues;
    try {
      residues = clean_residues(options.sequence, changes);
    } catch (const favor::Error& error) {
      throw UsageError(message("variants: --sequence: ", error.what()));
    }
    if (!changes.changes().empty()) {
      throw UsageError(message("variants: --sequence: ", changes.changes(),
                               ", expected the residues themselves (positions would shift)"));
    }
    return residues;
  }
  FastaReader reader(options.wild_type);
  FastaRecord record;
  FastaRecord second;
  reader.next(record);
  if (reader.next(second)) {
    throw std::runtime_error(message(options.wild_type, ":", second.line,
                                     ": a second record, expected the wild type alone"));
  }
  if (record.sequence.empty()) {
    throw std::runtime_error(message(options.wild_type, ": holds no residue"));
  }
  return record.sequence;
}

// The places of the columns that say what a row is; at least one is there.
struct Columns {
  int64_t mutant = -1;
  int64_t sequence = -1;
};

Columns find_columns(const VariantOptions& options, const Table& table) {
  const Columns columns = {table.find(options.mutant_column), table.find(options.sequence_column)};
  if (columns.mutant < 0 && columns.sequence < 0) {
    std::string found;
    for (const std::string& name : table.columns) found += (found.empty() ? "" : ", ") + name;
    throw std::runtime_error(message(options.data, ": has columns ", found, ", expected ",
                                     options.mutant_column, " or ", options.sequence_column,
                                     " (--mutant-column, --sequence-column)"));
  }
  for (const std::string& name : {options.score_column, options.score_column + "_by"}) {
    if (table.find(name) >= 0) {
      throw std::runtime_error(message(options.data, ": has a column ", name,
                                       " already, expected another --score-column"));
    }
  }
  return columns;
}

// Throws favor::Error reading `column NAME: what is wrong`.
Variant read_row(const TableRow& row, const Table& table, const Columns& columns,
                 std::string_view wild_type, int64_t offset, const Tokenizer& tokenizer) {
  FAVOR_CHECK(row.fields.size() == table.columns.size(), "has ", row.fields.size(),
              " fields, expected ", table.columns.size());
  const bool by_sequence =
      columns.mutant < 0 || (row.fields[columns.mutant].empty() && columns.sequence >= 0);
  const int64_t column = by_sequence ? columns.sequence : columns.mutant;
  try {
    return by_sequence ? variant_of_sequence(row.fields[column], wild_type, tokenizer)
                       : parse_mutant(row.fields[column], wild_type, offset, tokenizer);
  } catch (const favor::Error& error) {
    throw favor::Error(message("column ", table.columns[column], ": ", error.what()));
  }
}

VariantScoring scoring_for(const SequenceModel& model, const std::string& word) {
  if (word.empty()) {
    return model.causal() ? VariantScoring::kRescore : VariantScoring::kMaskedMarginals;
  }
  const VariantScoring scoring = variant_scoring_from_string(word);
  if (model.causal() && scoring != VariantScoring::kRescore) {
    throw UsageError(message("variants: --scoring is ", word,
                             ", expected rescore (the model is causal: marginals need a masked "
                             "one)"));
  }
  return scoring;
}

}  // namespace

int run_variants(const Command& command, const std::vector<std::string>& arguments) {
  InferOptions infer;
  VariantOptions wanted;
  Options options(command);
  options.add("-i,--data", wanted.data,
              "CSV or TSV file of variants, .gz or not; - is standard "
              "input");
  options.add("--sequence", wanted.sequence, "the wild type's residues");
  options.add("--wild-type", wanted.wild_type, "or a FASTA file that holds it alone");
  options.add("--offset", wanted.offset,
              "subtracted from every position; then the first residue is 1");
  options.add("--scoring", wanted.scoring,
              "masked-marginals, wt-marginals or rescore; '': masked-marginals, rescore if causal");
  options.add("--direction", wanted.direction,
              "causal models read forward, reverse, or both for the mean");
  options.add("--mutant-column", wanted.mutant_column,
              "mutations: A24G, A24del, A24_K25insGH, A24_K30delinsG, joined by :; WT");
  options.add("--sequence-column", wanted.sequence_column,
              "whole mutated sequences, where there is no mutant");
  options.add("--score-column", wanted.score_column, "name of the column that is added");
  options.add("-o,--output", wanted.output, "file instead of standard output");
  options.add("--strict", wanted.strict, "stop at the first row that is wrong");
  infer.add_to(options);
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  Direction direction = Direction::kForward;
  try {
    infer.check();
    FAVOR_CHECK(!wanted.data.empty(), "--data is missing, expected a CSV or TSV file or -");
    FAVOR_CHECK(wanted.sequence.empty() != wanted.wild_type.empty(),
                "--sequence and --wild-type: expected one of them");
    FAVOR_CHECK(infer.chunk == 0, "--chunk is ", infer.chunk,
                ", expected 0 (variants are compared whole)");
    if (!wanted.scoring.empty()) variant_scoring_from_string(wanted.scoring);
    direction = direction_from_string(wanted.direction);
  } catch (const favor::Error& error) {
    throw UsageError(message("variants: ", error.what()));
  }
  check_writable(wanted.output, infer.force);
  RunReport report(command, arguments, infer.quiet);
  const std::string wild_type = wild_type_of(wanted);
  const Table table = read_table(wanted.data);
  const Columns columns = find_columns(wanted, table);
  SequenceModel model = infer.open(command);
  const VariantScoring scoring = scoring_for(model, wanted.scoring);
  if (!model.causal() && direction != Direction::kForward) {
    throw UsageError(message("variants: --direction is ", wanted.direction,
                             ", expected it with a causal model (a masked one reads both sides)"));
  }

  std::vector<std::string> problems;
  const auto blame = [&](int64_t row, const std::string& what) {
    problems.push_back(message(wanted.data == "-" ? "standard input" : wanted.data, ":",
                               table.rows[row].line, ": row ", row + 1, ", ", what));
    if (wanted.strict) throw std::runtime_error(problems.back());
  };
  std::vector<Variant> variants;
  std::vector<int64_t> row_of;  // the row of each variant
  for (int64_t row = 0; row < std::ssize(table.rows); ++row) {
    try {
      variants.push_back(
          read_row(table.rows[row], table, columns, wild_type, wanted.offset, model.tokenizer()));
      row_of.push_back(row);
    } catch (const favor::Error& error) {
      blame(row, error.what());
    }
  }
  Ticker ticker(infer.quiet);
  int64_t passes = 0;
  std::vector<WorkFailure> failures;
  const auto scores =
      score_variants(model, wild_type, variants, scoring, direction, failures, [&](int64_t count) {
        passes += count;
        if (!ticker.due()) return;
        std::fprintf(stderr, "%lld rows passed, %.1f per second\n", static_cast<long long>(passes),
                     double(passes) / ticker.seconds());
      });
  for (const WorkFailure& failure : failures) blame(row_of[failure.item], failure.reason);

  std::vector<std::pair<std::string, std::string>> added(table.rows.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i])
      added[row_of[i]] = {number_text(scores[i]->value), to_string(scores[i]->scoring)};
  }
  std::vector<std::string> head = table.columns;
  head.push_back(wanted.score_column);
  head.push_back(wanted.score_column + "_by");
  std::string text = table_line(head, table.separator);
  for (size_t row = 0; row < table.rows.size(); ++row) {
    std::vector<std::string> fields = table.rows[row].fields;
    // A row that is too short keeps its place; one too long keeps its fields after the scores'.
    std::vector<std::string> rest;
    if (fields.size() > table.columns.size()) {
      rest.assign(fields.begin() + std::ssize(table.columns), fields.end());
    }
    fields.resize(table.columns.size());
    fields.push_back(added[row].first);
    fields.push_back(added[row].second);
    fields.insert(fields.end(), rest.begin(), rest.end());
    text += table_line(fields, table.separator);
  }
  write_result(wanted.output, text, infer.force);
  if (!infer.quiet) {
    std::fprintf(stderr, "%zu rows in %.2f s\n", table.rows.size(), ticker.seconds());
  }
  report.finish();
  if (problems.empty()) return 0;
  for (const std::string& problem : problems) std::fprintf(stderr, "failed: %s\n", problem.c_str());
  throw std::runtime_error(message("variants: ", problems.size(), " of ", table.rows.size(),
                                   " rows failed; their scores are empty"));
}

}  // namespace performer::cli
