// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/embed_files.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "favor/check.h"
#include "favor/words.h"
#include "performer/data/atomic_file.h"
#include "performer/data/safetensors.h"
#include "performer/data/table.h"
#include "performer/infer/result_file.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;
using nlohmann::json;

constexpr favor::Word<EmbedFormat> kFormats[] = {{EmbedFormat::kSafetensors, "safetensors"},
                                                 {EmbedFormat::kNpy, "npy"},
                                                 {EmbedFormat::kTsv, "tsv"}};
constexpr const char* kPartial = ".partial";
constexpr const char* kSettings = "embeddings.json";
constexpr const char* kIndex = "index.tsv";
constexpr const char* kResidues = "residues";
constexpr auto kSyncInterval = std::chrono::milliseconds(500);

/// Every name that a run of any settings gives to a file in the folder.
bool is_result(const fs::path& path) {
  const std::string stem = path.stem().string();
  const std::string extension = path.extension().string();
  if (path.filename() == kPartial || path.filename() == kSettings || path.filename() == kIndex ||
      path.filename() == kResidues || path.filename() == "embeddings.safetensors") {
    return true;
  }
  return (extension == ".npy" || extension == ".tsv") &&
         (stem == "mean" || stem == "max" || stem == "bos" || stem == "eos" || stem == kResidues);
}

// The NPY format, version 1.0: magic, header length, a Python dictionary padded to 64 bytes.
std::string npy_header(int64_t rows, int64_t columns) {
  std::string dictionary =
      message("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ", columns, "), }");
  constexpr size_t kFixed = 10;
  const size_t total = (kFixed + dictionary.size() + 1 + 63) / 64 * 64;
  dictionary.resize(total - kFixed - 1, ' ');
  dictionary += '\n';
  const size_t length = dictionary.size();
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(length & 0xff);
  header += static_cast<char>(length >> 8);
  return header + dictionary;
}

void write_npy(const std::string& path, const char* data, int64_t rows, int64_t columns) {
  AtomicFile file(path);
  const std::string header = npy_header(rows, columns);
  file.write(header.data(), header.size());
  file.write(data, static_cast<size_t>(rows * columns) * sizeof(float));
  file.commit();
}

void append_values(std::string& line, const char* data, int64_t count) {
  char text[32];
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(float)), sizeof(float));
    // The shortest text that reads back as the same number.
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);
    line += '\t';
    line.append(text, end);
  }
  line += '\n';
}

void append_column_names(std::string& line, int64_t count) {
  for (int64_t i = 0; i < count; ++i) line += message("\tv", i);
  line += '\n';
}

}  // namespace

EmbedFormat embed_format_from_string(std::string_view word) {
  return favor::value_of(kFormats, word, "format");
}

struct EmbeddingFolder::Parts {
  fs::path folder;
  EmbedLayout layout;
  const Records& records;
  json settings;
  std::vector<std::string> safe;
  bool complete = false;
  std::optional<ResultFile> pooled;    // [poolings, records, dim]
  std::optional<ResultFile> residues;  // [all residues, dim]
  std::optional<ResultFile> marks;     // one byte per record
  std::string done;                    // the bytes of `marks`
  std::vector<int64_t> pending;
  std::vector<int64_t> first_residue;
  std::chrono::steady_clock::time_point last_sync = std::chrono::steady_clock::now();

  Parts(const std::string& path, const EmbedLayout& embed_layout, const Records& input)
      : folder(path), layout(embed_layout), records(input), safe(safe_names(input.names)) {
    int64_t total = 0;
    for (int64_t i = 0; i < records.size(); ++i) {
      first_residue.push_back(total);
      total += records.sequences.length(i);
    }
  }

  fs::path partial(const char* name) const { return folder / kPartial / name; }
  int64_t row_bytes() const { return layout.dim * static_cast<int64_t>(sizeof(float)); }

  // Returns whether the folder holds the beginning of a run that can go on.
  bool prepare(FolderUse use) {
    std::error_code error;
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw std::runtime_error(
          message("--out: ", folder.string(), " is a file, expected a folder"));
    }
    fs::create_directories(folder, error);
    if (error) {
      throw std::runtime_error(
          message("--out: ", folder.string(), " cannot be made: ", error.message()));
    }
    if (use == FolderUse::kResume && resume()) return true;
    if (use == FolderUse::kForce) {
      std::vector<fs::path> old;
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (is_result(entry.path())) old.push_back(entry.path());
      }
      // The index first: what is left when this is cut off does not look whole.
      fs::remove(folder / kIndex);
      for (const fs::path& path : old) fs::remove_all(path);
    } else if (use == FolderUse::kFresh && !fs::is_empty(folder)) {
      throw std::runtime_error(message("--out: ", folder.string(),
                                       " is not empty, expected a new folder (--resume goes on, "
                                       "--force replaces results)"));
    }
    return false;
  }

  bool resume() {
    const fs::path stored = partial(kSettings);
    complete = fs::exists(folder / kIndex) && !fs::exists(stored);
    const fs::path file = complete ? folder / kSettings : stored;
    if (!fs::exists(file)) {
      // Killed before its first file was whole, or never begun.
      fs::remove_all(folder / kPartial);
      return false;
    }
    const json before = read_json_file(file.string());
    for (const auto& [key, value] : settings.items()) {
      const json other = before.value(key, json());
      if (other == value) continue;
      throw std::runtime_error(message("--resume: ", key, " is ", value.dump(), ", expected ",
                                       other.dump(), " as in the run in ", folder.string()));
    }
    return true;
  }

  void open(bool create) {
    std::error_code error;
    if (create) fs::create_directories(folder / kPartial, error);
    if (error) {
      throw std::runtime_error(
          message("--out: ", (folder / kPartial).string(), " cannot be made: ", error.message()));
    }
    const int64_t count = std::ssize(layout.poolings) * records.size();
    pooled.emplace(partial("pooled.f32").string(), count * row_bytes(), create);
    const int64_t rows = layout.per_residue ? records.sequences.num_tokens() : 0;
    residues.emplace(partial("residues.f32").string(), rows * row_bytes(), create);
    marks.emplace(partial("done").string(), records.size(), create);
    // Last: with it the beginnings of a run are whole.
    if (create) write_file_atomically(partial(kSettings).string(), settings.dump(2) + "\n");
    if (create) done.assign(static_cast<size_t>(records.size()), '\0');
    if (!create && records.size() > 0) done.assign(marks->map(), records.size());
  }

  // Copies of the spools without the rows of failed records, where there are any.
  std::unique_ptr<ResultFile> kept(ResultFile& from, const char* name,
                                   const std::vector<std::pair<int64_t, int64_t>>& pieces) {
    int64_t bytes = 0;
    for (const auto& [offset, size] : pieces) bytes += size;
    auto to = std::make_unique<ResultFile>(partial(name).string(), bytes, /*create=*/true);
    int64_t at = 0;
    for (const auto& [offset, size] : pieces) {
      if (size > 0) to->write(at, from.map() + offset, static_cast<size_t>(size));
      at += size;
    }
    return to;
  }

  void write_files(const std::vector<int64_t>& good, const char* vectors, const char* rows) {
    const auto num_good = std::ssize(good);
    const int64_t block = num_good * row_bytes();
    const auto file = [&](const std::string& name) { return (folder / name).string(); };
    int64_t num_rows = 0;
    for (const int64_t i : good) num_rows += records.sequences.length(i);
    if (layout.format == EmbedFormat::kSafetensors) {
      std::vector<StoredTensor> tensors;
      const auto add = [&](const std::string& name, const char* data, int64_t count) {
        tensors.push_back({name,
                           StoredType::kF32,
                           {count, layout.dim},
                           data,
                           static_cast<size_t>(count * row_bytes())});
      };
      for (size_t p = 0; p < layout.poolings.size(); ++p) {
        add(layout.poolings[p], vectors + static_cast<int64_t>(p) * block, num_good);
      }
      if (layout.per_residue && layout.joined) add(kResidues, rows, num_rows);
      for (const int64_t i : good) {
        if (!layout.per_residue || layout.joined) break;
        add(message(kResidues, "/", safe[i]), rows, records.sequences.length(i));
        rows += records.sequences.length(i) * row_bytes();
      }
      write_safetensors(file("embeddings.safetensors"), tensors, {{"format", "pt"}});
      return;
    }
    const bool npy = layout.format == EmbedFormat::kNpy;
    for (const std::string& pooling : layout.poolings) {
      if (npy) {
        write_npy(file(pooling + ".npy"), vectors, num_good, layout.dim);
      } else {
        write_vector_table(file(pooling + ".tsv"), good, vectors);
      }
      vectors += block;
    }
    if (!layout.per_residue) return;
    if (!npy) return write_residue_table(file("residues.tsv"), good, rows);
    if (layout.joined) return write_npy(file("residues.npy"), rows, num_rows, layout.dim);
    const fs::path made = partial(kResidues);
    fs::remove_all(made);
    fs::create_directory(made);
    for (const int64_t i : good) {
      const int64_t length = records.sequences.length(i);
      write_npy((made / (safe[i] + ".npy")).string(), rows, length, layout.dim);
      rows += length * row_bytes();
    }
    fs::remove_all(folder / kResidues);
    fs::rename(made, folder / kResidues);
  }

  void write_vector_table(const std::string& path, const std::vector<int64_t>& good,
                          const char* vectors) const {
    AtomicFile file(path);
    std::string line = "name";
    append_column_names(line, layout.dim);
    for (const int64_t i : good) {
      line += safe[i];
      append_values(line, vectors, layout.dim);
      vectors += row_bytes();
      file.write(line.data(), line.size());
      line.clear();
    }
    file.write(line.data(), line.size());
    file.commit();
  }

  void write_residue_table(const std::string& path, const std::vector<int64_t>& good,
                           const char* rows) const {
    AtomicFile file(path);
    std::string line = "name\tposition\tresidue";
    append_column_names(line, layout.dim);
    for (const int64_t i : good) {
      const std::string letters = records.tokenizer.decode(records.sequences[i]);
      for (size_t at = 0; at < letters.size(); ++at) {
        line += message(safe[i], "\t", at + 1, "\t", letters[at]);
        append_values(line, rows, layout.dim);
        rows += row_bytes();
        file.write(line.data(), line.size());
        line.clear();
      }
    }
    file.write(line.data(), line.size());
    file.commit();
  }

  void write_index(const std::vector<std::string>& reasons) const {
    std::string text = table_line(
        {"number", "name", "length", "status", "row", "first_residue_row", "header"}, '\t');
    int64_t row = 0;
    int64_t residue_row = 0;
    for (int64_t i = 0; i < records.size(); ++i) {
      const bool good = reasons[i].empty();
      text += table_line(
          {std::to_string(i + 1), safe[i], std::to_string(records.sequences.length(i)),
           good ? "ok" : reasons[i], good ? std::to_string(row) : "",
           good && layout.per_residue ? std::to_string(residue_row) : "", records.headers[i]},
          '\t');
      if (!good) continue;
      ++row;
      residue_row += records.sequences.length(i);
    }
    write_file_atomically((folder / kIndex).string(), text);
  }
};

EmbeddingFolder::EmbeddingFolder(const std::string& path, const EmbedLayout& layout,
                                 const Records& records, const json& settings, FolderUse use)
    : parts_(std::make_unique<Parts>(path, layout, records)) {
  parts_->settings = settings;
  const bool goes_on = parts_->prepare(use);
  if (!parts_->complete) parts_->open(/*create=*/!goes_on);
}

EmbeddingFolder::~EmbeddingFolder() = default;

bool EmbeddingFolder::complete() const {
  return parts_->complete;
}

bool EmbeddingFolder::done(int64_t record) const {
  return parts_->complete || parts_->done[record] != 0;
}

void EmbeddingFolder::put(int64_t record, const Embedding& embedding) {
  Parts& parts = *parts_;
  const auto dim = static_cast<size_t>(parts.layout.dim);
  for (size_t p = 0; p < parts.layout.poolings.size(); ++p) {
    const int64_t row = static_cast<int64_t>(p) * parts.records.size() + record;
    parts.pooled->write(row * parts.row_bytes(), embedding.pooled.data() + p * dim,
                        dim * sizeof(float));
  }
  if (parts.layout.per_residue) {
    parts.residues->write(parts.first_residue[record] * parts.row_bytes(),
                          embedding.residues.data(), embedding.residues.size() * sizeof(float));
  }
  parts.pending.push_back(record);
  if (std::chrono::steady_clock::now() - parts.last_sync >= kSyncInterval) sync();
}

void EmbeddingFolder::sync() {
  Parts& parts = *parts_;
  if (parts.pending.empty()) return;
  // A mark must never reach the disk before what it vouches for.
  parts.pooled->sync();
  parts.residues->sync();
  for (const int64_t record : parts.pending) {
    const char mark = 1;
    parts.marks->write(record, &mark, 1);
    parts.done[record] = mark;
  }
  parts.marks->sync();
  parts.pending.clear();
  parts.last_sync = std::chrono::steady_clock::now();
}

void EmbeddingFolder::finish(const std::vector<WorkFailure>& failures) {
  Parts& parts = *parts_;
  sync();
  std::vector<std::string> reasons(parts.records.size());
  for (const WorkFailure& failure : failures) reasons[failure.item] = failure.reason;
  std::vector<int64_t> good;
  for (int64_t i = 0; i < parts.records.size(); ++i) {
    if (reasons[i].empty()) good.push_back(i);
  }
  // An index of an earlier end must not stand beside files that are being replaced.
  fs::remove(parts.folder / kIndex);
  if (failures.empty()) {
    parts.write_files(good, parts.pooled->map(), parts.residues->map());
  } else {
    std::vector<std::pair<int64_t, int64_t>> vectors, rows;
    for (int64_t p = 0; p < std::ssize(parts.layout.poolings); ++p) {
      for (const int64_t i : good) {
        vectors.emplace_back((p * parts.records.size() + i) * parts.row_bytes(), parts.row_bytes());
      }
    }
    for (const int64_t i : good) {
      if (!parts.layout.per_residue) break;
      rows.emplace_back(parts.first_residue[i] * parts.row_bytes(),
                        parts.records.sequences.length(i) * parts.row_bytes());
    }
    const auto kept_vectors = parts.kept(*parts.pooled, "pooled.kept", vectors);
    const auto kept_rows = parts.kept(*parts.residues, "residues.kept", rows);
    parts.write_files(good, kept_vectors->map(), kept_rows->map());
    fs::remove(parts.partial("pooled.kept"));
    fs::remove(parts.partial("residues.kept"));
  }
  write_file_atomically((parts.folder / kSettings).string(), parts.settings.dump(2) + "\n");
  parts.write_index(reasons);
  if (!failures.empty()) return;
  // First what makes the rest the beginnings of a run.
  fs::remove(parts.partial(kSettings));
  fs::remove_all(parts.folder / kPartial);
}

}  // namespace performer
