// SPDX-License-Identifier: Apache-2.0
// `performer attention`: where a model looks in a sequence, as pictures and as data, and what its
// attention says of amino acids.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/safetensors.h"
#include "performer/infer/amino_acids.h"
#include "performer/infer/records.h"
#include "performer/report/heat_map.h"
#include "performer/train/checkpoint.h"
#include "performer/train/run_folder.h"

namespace performer::cli {
namespace {

namespace fs = std::filesystem;
using favor::message;

/// Start, residues, end, as [1, L].
torch::Tensor framed(const LoadedModel& loaded, std::span<const uint8_t> residues) {
  std::vector<int64_t> tokens = {loaded.start_token};
  tokens.insert(tokens.end(), residues.begin(), residues.end());
  tokens.push_back(loaded.tokenizer.eos());
  return torch::tensor(tokens).unsqueeze(0);
}

/// The record that is called so, or that has this number, from 1.
int64_t find_record(const Records& records, const std::string& wanted) {
  if (wanted.empty() && records.size() > 0) return 0;
  const auto found = std::find(records.names.begin(), records.names.end(), wanted);
  if (found != records.names.end()) return found - records.names.begin();
  int64_t number = 0;
  const auto end = wanted.data() + wanted.size();
  const auto parsed = std::from_chars(wanted.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end && number >= 1 && number <= records.size()) {
    return number - 1;
  }
  throw std::runtime_error(message("--sequence: '", wanted, "' is none of the ", records.size(),
                                   " sequences, expected a name or a number from 1"));
}

MatrixView view_of(const torch::Tensor& matrix) {
  return {{matrix.const_data_ptr<float>(), static_cast<size_t>(matrix.numel())},
          matrix.size(0),
          matrix.size(1)};
}

std::string matrix_text(const torch::Tensor& matrix, const std::string& letters) {
  // Rows and columns are called by letter and place; the tokens around the residues have place 0
  // and L + 1.
  const auto name = [&](int64_t i) { return message(letters[i], i); };
  std::string text = "query";
  for (int64_t j = 0; j < matrix.size(1); ++j) text += "\t" + name(j);
  text += "\n";
  const float* values = matrix.const_data_ptr<float>();
  for (int64_t i = 0; i < matrix.size(0); ++i) {
    text += name(i);
    for (int64_t j = 0; j < matrix.size(1); ++j) {
      char number[32];
      std::snprintf(number, sizeof number, "\t%.6g", double(values[i * matrix.size(1) + j]));
      text += number;
    }
    text += "\n";
  }
  return text;
}

struct Target {
  fs::path folder;
  bool force;

  /// A file of the folder that may be written.
  std::string path(const std::string& name) const {
    const std::string full = (folder / name).string();
    check_writable(full, force);
    return full;
  }
};

void write_maps(LoadedModel& loaded, const Records& records, int64_t record, int64_t layer,
                int64_t head, bool tsv, const Target& target) {
  const std::string letters = "^" + loaded.tokenizer.decode(records.sequences[record]) + "$";
  const std::string stem = safe_names({records.names[record]}).front();
  const torch::Tensor tokens = framed(loaded, records.sequences[record]);
  loaded.model->visit_attention(tokens, {layer}, [&](int64_t block, const torch::Tensor& all) {
    torch::Tensor weights = all[0].contiguous();
    const int64_t H = weights.size(0);
    FAVOR_CHECK(head >= -1 && head < H, "attention: --head is ", head, ", expected 0 to ", H - 1,
                ", or -1 for all");
    if (head >= 0) weights = weights.slice(0, head, head + 1).contiguous();
    const std::string base = message(stem, "-layer", block, head >= 0 ? "-head" : "",
                                     head >= 0 ? std::to_string(head) : "");
    std::vector<MatrixView> panels;
    for (int64_t h = 0; h < weights.size(0); ++h) panels.push_back(view_of(weights[h]));
    write_file_atomically(target.path(base + ".png"), heat_map_png(panels, 4, /*root=*/true));
    if (tsv) {
      for (int64_t h = 0; h < weights.size(0); ++h) {
        const std::string name = head >= 0 ? base + ".tsv" : message(base, "-head", h, ".tsv");
        write_file_atomically(target.path(name), matrix_text(weights[h], letters));
      }
    } else {
      const StoredTensor stored{"weights", StoredType::kF32, weights.sizes().vec(),
                                weights.const_data_ptr(), static_cast<size_t>(weights.nbytes())};
      write_safetensors(target.path(base + ".safetensors"), {stored},
                        {{"sequence", records.headers[record]},
                         {"letters", letters},
                         {"layer", std::to_string(block)},
                         {"first_head", std::to_string(std::max<int64_t>(0, head))}});
    }
    std::printf("%s: layer %lld, %lld heads, %lld tokens: %s\n", records.names[record].c_str(),
                static_cast<long long>(block), static_cast<long long>(weights.size(0)),
                static_cast<long long>(weights.size(1)), (target.folder / (base + ".png")).c_str());
  });
}

std::string similarity_text(const AminoAcidMatrix& similarity) {
  const AminoAcidMatrix reference = blosum62();
  std::string text = "first\tsecond\tattention\tblosum62\n";
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j < i; ++j) {
      char number[64];
      std::snprintf(number, sizeof number, "\t%.6g\t%.0f\n", similarity[i][j], reference[i][j]);
      text += message(kAminoAcids[i], "\t", kAminoAcids[j], number);
    }
  }
  return text;
}

// Both matrices without their diagonals, which would hide what is between them.
std::string similarity_picture(const AminoAcidMatrix& similarity) {
  std::vector<std::vector<float>> panels;
  for (const AminoAcidMatrix& matrix : {similarity, blosum62()}) {
    std::vector<float> values;
    for (size_t i = 0; i < 20; ++i) {
      for (size_t j = 0; j < 20; ++j) {
        values.push_back(i == j ? std::nanf("") : static_cast<float>(matrix[i][j]));
      }
    }
    panels.push_back(values);
  }
  return heat_map_png({{panels[0], 20, 20}, {panels[1], 20, 20}}, 2, /*root=*/false);
}

void write_similarity(LoadedModel& loaded, const Records& records, int64_t wanted, bool quiet,
                      const Target& target) {
  const ModelConfig& config = loaded.model->config();
  AttentionProfile profile(config.num_layers * config.num_heads);
  // The map of a sequence takes memory and time quadratic in its length.
  constexpr int64_t kLongest = 1000;
  int64_t used = 0, longer = 0;
  for (int64_t i = 0; i < records.size() && used < wanted; ++i) {
    const int64_t length = records.sequences.length(i);
    if (length == 0) continue;
    if (length > kLongest) {
      ++longer;
      continue;
    }
    const std::string letters = loaded.tokenizer.decode(records.sequences[i]);
    loaded.model->visit_attention(
        framed(loaded, records.sequences[i]), {}, [&](int64_t layer, const torch::Tensor& all) {
          const torch::Tensor weights = all[0].contiguous();
          for (int64_t h = 0; h < config.num_heads; ++h) {
            profile.add(layer * config.num_heads + h, weights[h].const_data_ptr<float>(),
                        weights.size(1), letters, 1);
          }
        });
    ++used;
    if (!quiet && used % 50 == 0) std::fprintf(stderr, "%lld sequences\n", (long long)used);
  }
  if (used == 0) {
    throw std::runtime_error(message("--similarity: no sequence has 1 to ", kLongest,
                                     " residues, expected at least one"));
  }
  const AminoAcidMatrix similarity = profile.similarity();
  write_file_atomically(target.path("similarity.tsv"), similarity_text(similarity));
  write_file_atomically(target.path("similarity.png"), similarity_picture(similarity));
  std::printf("amino acids: %lld sequences", static_cast<long long>(used));
  if (longer > 0) {
    std::printf(" (%lld of more than %lld residues left out)", static_cast<long long>(longer),
                static_cast<long long>(kLongest));
  }
  std::printf("; correlation with BLOSUM62 %.3f; ranks among 190 pairs:",
              off_diagonal_correlation(similarity, blosum62()));
  for (const char* pair : {"DE", "FY", "IV", "KR"}) {
    std::printf(" %c,%c %lld", pair[0], pair[1],
                static_cast<long long>(pair_rank(similarity, pair[0], pair[1])));
  }
  std::printf("\n");
}

}  // namespace

int run_attention(const Command& command, const std::vector<std::string>& arguments) {
  std::string model;
  std::string data;
  std::string sequence;
  std::string output;
  int64_t layer = -1;
  int64_t head = -1;
  int64_t similarity = 0;
  int64_t threads = 0;
  std::string format = "safetensors";
  bool force = false;
  bool quiet = false;
  Options options(command);
  options.add("--model", model, "run, checkpoint or model folder");
  options.add("-i,--data", data, "FASTA file, .gz or not; - is standard input");
  options.add("--sequence", sequence, "name or number of the record to show; empty: the first");
  options.add("--layer", layer, "block, from 0; negative: from the end");
  options.add("--head", head, "head, from 0; -1: all of the layer");
  options.add("--format", format, "of the data: safetensors or tsv");
  options.add("--similarity", similarity,
              "also compare amino acids by the attention over so many sequences");
  options.add("-o,--output", output, "folder; empty: attention/ in the run");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("--force", force, "replace existing files");
  options.add("--quiet", quiet, "no log");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  try {
    FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
    FAVOR_CHECK(!data.empty(), "--data is missing, expected a FASTA file");
    FAVOR_CHECK(format == "safetensors" || format == "tsv", "--format is '", format,
                "', expected safetensors or tsv");
    FAVOR_CHECK(similarity >= 0, "--similarity is ", similarity, ", expected at least 0");
    FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
                ", expected 0 (all cores) to 1024");
    if (output.empty()) {
      FAVOR_CHECK(fs::exists(fs::path(model) / "metrics.jsonl"),
                  "--output is missing, expected a folder (", model,
                  " is not the folder of a run)");
      output = (fs::path(model) / "attention").string();
    }
  } catch (const favor::Error& error) {
    throw UsageError(message("attention: ", error.what()));
  }
  std::error_code error;
  fs::create_directories(output, error);
  if (error) {
    throw std::runtime_error(
        message("--output: ", output, " cannot be created: ", error.message()));
  }
  RunReport report(command, arguments, quiet);
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  LoadedModel loaded = load_model(model);
  const Records records = read_records(data, loaded.tokenizer);
  if (!quiet && !records.counts.changes().empty()) {
    std::fprintf(stderr, "%s: %s\n", data.c_str(), records.counts.changes().c_str());
  }
  const Target target{output, force};
  write_maps(loaded, records, find_record(records, sequence), layer, head, format == "tsv", target);
  if (similarity > 0) write_similarity(loaded, records, similarity, quiet, target);
  report.finish();
  return 0;
}

}  // namespace performer::cli
