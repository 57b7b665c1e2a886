// SPDX-License-Identifier: Apache-2.0
// `performer tokenize`: FASTA records to token ids.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/fasta.h"
#include "performer/data/tokenizer.h"

namespace performer::cli {
namespace {

std::string tsv_line(const FastaRecord& record, const std::vector<uint8_t>& ids) {
  std::string line = record.name + "\t" + std::to_string(ids.size()) + "\t";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) line += ' ';
    line += std::to_string(ids[i]);
  }
  return line + "\n";
}

std::string json_line(const FastaRecord& record, const std::vector<uint8_t>& ids) {
  const nlohmann::ordered_json object = {
      {"name", record.name}, {"length", ids.size()}, {"ids", ids}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

int run_tokenize(const Command& command, const std::vector<std::string>& arguments) {
  std::string input;
  std::string output;
  bool json = false;
  bool force = false;
  bool quiet = false;
  Options options(command);
  options.positional("input", input, "FASTA file, .gz or not; - is standard input");
  options.add("-i,--data", input, "the same, as an option");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", json, "JSON lines instead of TSV (name, length, ids)");
  options.add("--force", force, "replace an existing file");
  options.add("--quiet", quiet, "no summary");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  if (input.empty()) throw UsageError("tokenize: input is missing, expected a FASTA file or -");
  check_writable(output, force);
  const Tokenizer tokenizer = Tokenizer::protein();
  FastaReader reader(input);
  std::unique_ptr<AtomicFile> file;
  if (!output.empty() && output != "-") file = std::make_unique<AtomicFile>(output);
  const auto write = [&](const std::string& text) {
    if (file) {
      file->write(text.data(), text.size());
    } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      throw std::runtime_error(
          favor::message("standard output: cannot be written: ", std::strerror(errno)));
    }
  };
  // The table opens once a record has been read: a file that holds none leaves nothing behind.
  FastaRecord record;
  bool more = reader.next(record);
  if (!json) write("name\tlength\tids\n");
  for (; more; more = reader.next(record)) {
    const std::vector<uint8_t> ids = tokenizer.encode(record.sequence);
    write(json ? json_line(record, ids) : tsv_line(record, ids));
  }
  if (file) {
    file->commit();
  } else if (std::fflush(stdout) != 0) {
    throw std::runtime_error(
        favor::message("standard output: cannot be written: ", std::strerror(errno)));
  }
  if (!quiet) std::fprintf(stderr, "%s\n", reader.counts().summary().c_str());
  return 0;
}

}  // namespace performer::cli
