// SPDX-License-Identifier: Apache-2.0
// The command table, and the one place where errors become messages and exit statuses: 0 success, 1
// failure, 2 wrong usage.
#include <csignal>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/train/freed_memory.h"

namespace {

using performer::cli::Command;

constexpr Command kCommands[] = {
    {"info", "show versions and instruction sets, or what a model or run is made of",
     "performer info runs/demo", performer::cli::run_info},
    {"data", "prepare token files, the form in which large sets are trained on",
     "performer data prepare proteins.fasta.gz -o proteins.tokens", performer::cli::run_data},
    {"train", "train a model from a FASTA or token file",
     "performer train --preset protein-demo --data proteins.fasta.gz --out runs/demo",
     performer::cli::run_train},
    {"eval", "measure perplexity and accuracy beside the empirical baseline",
     "performer eval --model runs/demo", performer::cli::run_eval},
    {"generate", "sample sequences from a causal model",
     "performer generate --model runs/demo --count 3 --prompt MKT", performer::cli::run_generate},
    {"attention", "show where a model looks in a sequence",
     "performer attention --model runs/demo --data proteins.fasta --layer 0 --similarity 200",
     performer::cli::run_attention},
    {"bench", "measure how fast this machine trains, encodes or generates",
     "performer bench --mode encode --length 8192 --dtype bfloat16", performer::cli::run_bench},
    {"compare", "train a grid of methods, tasks and seeds, and put their results side by side",
     "performer compare methods.json -o runs/methods", performer::cli::run_compare},
    {"report", "put the curves and results of runs on one HTML page",
     "performer report runs/favor runs/exact -o comparison.html", performer::cli::run_report},
    {"embed", "turn sequences of any length into vectors, per sequence and per residue",
     "performer embed --model runs/demo --data proteins.fasta.gz --out embeddings",
     performer::cli::run_embed},
    {"score", "perplexity of each sequence, and of each residue",
     "performer score --model runs/demo --data proteins.fasta.gz -o scores.tsv",
     performer::cli::run_score},
    {"variants", "score a table of mutants of one sequence",
     "performer variants --model runs/demo --data mutants.csv --wild-type protein.fasta",
     performer::cli::run_variants},
    {"tokenize", "turn FASTA records into token ids",
     "performer tokenize proteins.fasta -o proteins.tsv", performer::cli::run_tokenize},
};

std::string help_text() {
  std::string text =
      "performer: Transformers with attention in linear time (FAVOR+)\n\n"
      "Usage: performer COMMAND [OPTIONS]; performer COMMAND --help\n\nCommands:\n";
  for (const Command& command : kCommands) {
    text +=
        favor::message("  ", command.name, std::string(10 - std::string(command.name).size(), ' '),
                       command.summary, "\n            ", command.example, "\n");
  }
  return text + "\nperformer --version shows the version.\n";
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::string names;
    for (const Command& command : kCommands) {
      names += (names.empty() ? "" : ", ") + std::string(command.name);
    }
    throw performer::cli::UsageError(
        favor::message("no command given, expected one of ", names, " (performer --help)"));
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  if (name == "--version") {
    std::printf("performer %s (%s)\n", performer::cli::version().c_str(),
                performer::cli::revision().c_str());
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    names.push_back(command.name);
    if (name != command.name) continue;
    // Where steps repeat: sequences of all lengths would leave holes.
    if (name == "train" || name == "bench") performer::keep_freed_memory();
    return command.run(command, {arguments.begin() + 1, arguments.end()});
  }
  throw performer::cli::UsageError(favor::message("unknown command '", name, "', did you mean ",
                                                  performer::nearest_name(name, names),
                                                  "? (performer --help)"));
}

int fail(const std::string& text, int status) {
  // One line, whatever a library put into its message.
  const size_t end = text.find('\n');
  std::fprintf(stderr, "performer: error: %s\n", text.substr(0, end).c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that may not grow further is an error of writing it, which names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (const performer::cli::UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
