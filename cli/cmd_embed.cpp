// SPDX-License-Identifier: Apache-2.0
// `performer embed`: hidden states of sequences of any length, per sequence and per residue.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/infer_options.h"
#include "favor/check.h"
#include "favor/sha256.h"
#include "performer/infer/embed.h"

namespace performer::cli {
namespace {

using favor::message;

std::string file_digest(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  favor::Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), std::ssize(buffer)), file.gcount() > 0) {
    hash.update(buffer.data(), static_cast<size_t>(file.gcount()));
  }
  return hash.digest();
}

}  // namespace

int run_embed(const Command& command, const std::vector<std::string>& arguments) {
  InferOptions infer;
  EmbedOptions embed;
  EmbedLayout layout;
  std::string data;
  std::string out;
  std::string pool = "mean";
  std::string format = "safetensors";
  bool resume = false;
  Options options(command);
  options.add("-i,--data", data, "FASTA file, .gz or not; - is standard input");
  options.add("-o,--out", out, "folder for the embeddings and their index.tsv");
  options.add("--pool", pool, "vectors per sequence: some of mean,max,bos,eos; '' for none");
  options.add("--per-residue", embed.per_residue, "also a vector per residue");
  options.add("--layer", embed.layer,
              "0: embedding, 1: first block, ...; negative from the end, -1 after the final norm");
  options.add("--format", format, "safetensors, npy or tsv");
  options.add("--joined", layout.joined, "residues of all sequences in one array");
  options.add("--resume", resume, "go on where a killed run of the same settings stopped");
  infer.add_to(options);
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  try {
    infer.check();
    FAVOR_CHECK(!data.empty(), "--data is missing, expected a FASTA file or -");
    FAVOR_CHECK(!out.empty(), "--out is missing, expected a folder");
    FAVOR_CHECK(!resume || !infer.force, "--resume and --force exclude each other");
    embed.poolings = poolings_from_string(pool);
    layout.format = embed_format_from_string(format);
    FAVOR_CHECK(embed.per_residue || !embed.poolings.empty(),
                "--pool is empty, expected a pooling or --per-residue");
    FAVOR_CHECK(!layout.joined || embed.per_residue, "--joined is given, expected with it ",
                "--per-residue");
  } catch (const favor::Error& error) {
    throw UsageError(message("embed: ", error.what()));
  }
  RunReport report(command, arguments, infer.quiet);
  std::string folder;
  SequenceModel model = infer.open(command, &folder);
  const int64_t num_layers = model.config().num_layers;
  if (embed.layer < -1 - num_layers || embed.layer > num_layers) {
    throw UsageError(message("embed: --layer is ", embed.layer, ", expected ", -1 - num_layers,
                             " to ", num_layers));
  }
  const Records records = read_records(data, model.tokenizer());
  if (!infer.quiet) {
    std::fprintf(stderr, "%s: %s\n", data.c_str(), records.counts.summary().c_str());
  }
  layout.dim = model.config().dim;
  layout.per_residue = embed.per_residue;
  nlohmann::json names = nlohmann::json::array();
  for (const Pooling pooling : embed.poolings) {
    layout.poolings.push_back(to_string(pooling));
    names.push_back(to_string(pooling));
    if (pooling == Pooling::kBos && model.causal() && !infer.quiet) {
      std::fprintf(stderr,
                   "bos: in a causal model nothing precedes the start token, so this vector is the "
                   "same for every sequence; eos has seen all of it\n");
    }
  }
  const int64_t layer = embed.layer < 0 ? embed.layer + 1 + num_layers : embed.layer;
  const nlohmann::json settings = {
      {"model_sha256", file_digest(std::filesystem::path(folder) / "model.safetensors")},
      {"input_sha256", records.fingerprint()},
      {"layer", layer},
      {"dim", layout.dim},
      {"pool", names},
      {"per_residue", embed.per_residue},
      {"format", format},
      {"joined", layout.joined},
      {"chunk", infer.chunk},
      {"batch_tokens", infer.batch_tokens}};
  const FolderUse use = resume        ? FolderUse::kResume
                        : infer.force ? FolderUse::kForce
                                      : FolderUse::kFresh;
  EmbeddingFolder embeddings(out, layout, records, settings, use);
  if (embeddings.complete()) {
    if (!infer.quiet) std::fprintf(stderr, "%s is complete: nothing to do\n", out.c_str());
    return 0;
  }
  Ticker ticker(infer.quiet);
  EmbedProgress last;
  const std::vector<WorkFailure> failures =
      embed_records(model, records, embed, embeddings, [&](const EmbedProgress& progress) {
        last = progress;
        if (!ticker.due()) return;
        std::fprintf(stderr, "%lld of %lld sequences, %.0f residues/s\n",
                     static_cast<long long>(progress.done), static_cast<long long>(records.size()),
                     double(progress.residues) / ticker.seconds());
      });
  const double spent = ticker.seconds();
  embeddings.finish(failures);
  if (!infer.quiet) {
    int64_t cut = 0;
    for (int64_t i = 0; i < records.size(); ++i) {
      cut += model.num_windows(records.sequences.length(i) + 2) > 1 ? 1 : 0;
    }
    if (cut > 0) {
      std::fprintf(stderr,
                   "%lld sequences passed through in windows of %lld tokens; no residue "
                   "was left out\n",
                   static_cast<long long>(cut), static_cast<long long>(infer.chunk));
    }
    std::fprintf(stderr, "%lld residues in %.2f s (%.0f per second)\n",
                 static_cast<long long>(last.residues), spent,
                 double(last.residues) / std::max(spent, 1e-9));
  }
  report.finish();
  if (failures.empty()) return 0;
  for (const WorkFailure& failure : failures) {
    std::fprintf(stderr, "failed: %s: %s\n", records.label(failure.item).c_str(),
                 failure.reason.c_str());
  }
  throw std::runtime_error(message("embed: ", failures.size(), " of ", records.size(),
                                   " sequences failed; the others are in ", out,
                                   infer.chunk_hint()));
}

}  // namespace performer::cli
