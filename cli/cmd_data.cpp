// SPDX-License-Identifier: Apache-2.0
// `performer data`: prepares token files, shows what is in them, writes them back as FASTA.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/prepare.h"
#include "performer/data/statistics.h"
#include "performer/data/token_file.h"

namespace performer::cli {
namespace {

using favor::message;
using nlohmann::ordered_json;

std::string sources_text(const ordered_json& description) {
  std::string text;
  for (const ordered_json& input : description["inputs"]) {
    const std::string changes = input["changes"].get<std::string>();
    text += message(input["path"].get<std::string>(), ": ", input["records"], " records, ",
                    input["residues"], " residues", changes.empty() ? "" : ", ", changes);
    if (input.value("united", 0) > 0) {
      text += message(", ", input["united"], " of them united with an earlier accession");
    }
    text += "\n";
  }
  text += message(description["sequences_read"], " sequences of ", description["residues_read"],
                  " residues, ", description["duplicates"], " exact duplicates left out\n");
  if (const auto clusters = description.find("clusters"); clusters != description.end()) {
    text += message((*clusters)["held_out"], " of ", (*clusters)["clusters"],
                    " clusters are held out, ", (*clusters)["sequences_not_in_it"],
                    " sequences are in no cluster\n");
  }
  if (const auto go = description.find("go"); go != description.end()) {
    text += message((*go)["held_out"], " GO terms are held out\n");
  }
  return text;
}

std::string report_text(const ordered_json& description) {
  return sources_text(description) + "\n" + statistics_table(description["sets"]);
}

std::string json_text(const ordered_json& description) {
  // Paths may hold bytes of any encoding.
  return description.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ordered_json description_of(const TokenFile& file, const std::string& path) {
  try {
    return ordered_json::parse(file.description());
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(message(path, ": description is no JSON: ", error.what()));
  }
}

int run_prepare(const Command& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> inputs;
  std::string output;
  bool json = false;
  bool force = false;
  bool quiet = false;
  PrepareOptions prepare;
  prepare.split.valid_fraction = prepare.split.test_fraction = 0.01;
  Options options(command);
  options.positional("INPUT", inputs,
                     "FASTA files, .gz or not, - for standard input; BLAST v4 protein databases "
                     "(NAME of NAME.pin, NAME.psq, NAME.phr)");
  options.add("-o,--output", output, "token file");
  options.add("--valid-fraction", prepare.split.valid_fraction,
              "share of the sequences to validate on, by hash");
  options.add("--test-fraction", prepare.split.test_fraction,
              "share of the sequences to test on, by hash");
  options.add("--seed", prepare.split.seed, "another seed, another division");
  options.add("--ood-clusters", prepare.clusters,
              "TSV of mmseqs2 (representative, member): hold out whole clusters");
  options.add("--ood-min-cluster", prepare.ood_min_cluster,
              "smallest cluster to hold out, in members");
  options.add("--ood-fraction", prepare.ood_fraction, "share of these clusters, by hash");
  options.add("--ood-go", prepare.go_terms,
              "GO terms, separated by commas: hold out proteins whose header has one");
  options.add("--go-graph", prepare.go_graph,
              "parent and child per line: hold out the terms' descendants too");
  options.add("--json", json, "statistics as JSON instead of a table");
  options.add("--force", force, "replace an existing file");
  options.add("--quiet", quiet, "no log");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  try {
    FAVOR_CHECK(!inputs.empty(), "INPUT is missing, expected FASTA files or BLAST databases");
    FAVOR_CHECK(!output.empty() && output != "-", "--output is missing, expected a file to write");
    FAVOR_CHECK(
        !prepare.clusters.empty() || (prepare.ood_min_cluster == 1 && prepare.ood_fraction == 1),
        "--ood-min-cluster or --ood-fraction is given without --ood-clusters");
    prepare.check();
  } catch (const favor::Error& error) {
    throw UsageError(message("data prepare: ", error.what()));
  }
  check_writable(output, force);
  RunReport report(command, arguments, quiet);
  const ordered_json description = prepare_tokens(inputs, output, prepare);
  write_result("", json ? json_text(description) : report_text(description), false);
  report.finish();
  return 0;
}

int run_stats(const Command& command, const std::vector<std::string>& arguments) {
  std::string input;
  std::string output;
  bool json = false;
  bool force = false;
  Options options(command);
  options.positional("FILE", input, "token file");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", json, "JSON instead of a table");
  options.add("--force", force, "replace an existing file");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  if (input.empty()) throw UsageError("data stats: FILE is missing, expected a token file");
  const TokenFile file(input);
  const ordered_json description = description_of(file, input);
  write_result(output, json ? json_text(description) : report_text(description), force);
  return 0;
}

// Standard output, or a file that appears once it is whole.
class Output {
 public:
  explicit Output(const std::string& path) {
    if (!path.empty() && path != "-") file_.emplace(path);
  }
  void write(const std::string& text) {
    if (file_) {
      file_->write(text.data(), text.size());
    } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      fail();
    }
  }
  void finish() {
    if (file_) {
      file_->commit();
    } else if (std::fflush(stdout) != 0) {
      fail();
    }
  }

 private:
  [[noreturn]] static void fail() {
    throw std::runtime_error(message("standard output: cannot be written: ", std::strerror(errno)));
  }

  std::optional<AtomicFile> file_;
};

int run_export(const Command& command, const std::vector<std::string>& arguments) {
  std::string input;
  std::string split = "all";
  std::string output;
  bool force = false;
  Options options(command);
  options.positional("FILE", input, "token file");
  options.add("--split", split, "train, valid, test, ood or all");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--force", force, "replace an existing file");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  if (input.empty()) throw UsageError("data export: FILE is missing, expected a token file");
  std::optional<TokenSet> chosen;
  try {
    if (split != "all") chosen = token_set_from_string(split);
  } catch (const favor::Error& error) {
    throw UsageError(message("data export: --split: ", error.what(), " | all"));
  }
  check_writable(output, force);
  const TokenFile file(input);
  const Tokenizer tokenizer = Tokenizer::protein();
  const SequenceSet sequences = chosen ? file.set(*chosen) : file.all();
  const int64_t first = chosen ? file.first(*chosen) : 0;
  Output out(output);
  std::string text;
  constexpr size_t kLine = 60, kBuffer = 1 << 20;
  for (int64_t i = 0; i < sequences.size(); ++i) {
    text += '>';
    text += file.header(first + i);
    text += '\n';
    const std::string letters = tokenizer.decode(sequences[i]);
    for (size_t begin = 0; begin < letters.size(); begin += kLine) {
      text.append(letters, begin, kLine);
      text += '\n';
    }
    if (text.size() < kBuffer) continue;
    out.write(text);
    text.clear();
  }
  out.write(text);
  out.finish();
  return 0;
}

constexpr Command kDataCommands[] = {
    {"data prepare", "read proteins, divide them into sets, write one token file",
     "performer data prepare proteins.fasta.gz --ood-clusters clusters.tsv --ood-min-cluster 100 "
     "-o proteins.tokens",
     run_prepare},
    {"data stats", "show what is in a token file", "performer data stats proteins.tokens",
     run_stats},
    {"data export", "write the sequences of a token file as FASTA",
     "performer data export proteins.tokens --split ood -o ood.fasta", run_export},
};

std::string help_text(const Command& command) {
  std::string text = message("performer data: ", command.summary, "\n\nCommands:\n");
  for (const Command& each : kDataCommands) {
    text += message("  ", each.name, std::string(14 - std::strlen(each.name), ' '), each.summary,
                    "\n                ", each.example, "\n");
  }
  return text;
}

}  // namespace

int run_data(const Command& command, const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h") {
    std::fputs(help_text(command).c_str(), stdout);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& each : kDataCommands) {
    const std::string word = std::string(each.name).substr(std::strlen("data "));
    if (name == word) return each.run(each, {arguments.begin() + 1, arguments.end()});
    names.push_back(word);
  }
  throw UsageError(name.empty() ? "data: no command given, expected prepare, stats or export"
                                : message("data: unknown command '", name, "', did you mean ",
                                          nearest_name(name, names), "? (performer data --help)"));
}

}  // namespace performer::cli
