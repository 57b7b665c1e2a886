// SPDX-License-Identifier: Apache-2.0
// The folder of embeddings: formats read back, order, failures, and runs that go on.
#include "performer/infer/embed_files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "favor/check.h"
#include "performer/data/safetensors.h"
#include "performer/data/table.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kDim = 3;
const json kSettingsOfTests = {{"layer", 2}, {"model_sha256", "abc"}};

Records three_records() {
  Records records;
  for (const char* text : {"MK", "ACD", "W"}) {
    records.sequences.add(Tokenizer::protein().encode(text));
  }
  records.names = {"sp|P1", "b", "b"};
  records.headers = {"sp|P1 first \"one\"", "b", "b\tagain"};
  return records;
}

// Values that say where they belong: record, pooling or position, dimension.
float value(int64_t record, int64_t block, int64_t d) {
  return static_cast<float>(100 * record + 10 * block + d) + 0.1f;
}

Embedding embedding(const Records& records, int64_t i, int64_t poolings, bool per_residue) {
  Embedding result;
  for (int64_t p = 0; p < poolings; ++p) {
    for (int64_t d = 0; d < kDim; ++d) result.pooled.push_back(value(i, p, d));
  }
  for (int64_t at = 0; per_residue && at < records.sequences.length(i); ++at) {
    for (int64_t d = 0; d < kDim; ++d) result.residues.push_back(-value(i, at, d));
  }
  return result;
}

EmbedLayout layout(EmbedFormat format, bool joined) {
  return {format, {"mean", "max"}, /*per_residue=*/true, joined, kDim};
}

void fill(const std::string& path, const EmbedLayout& form, const std::vector<int64_t>& order,
          const std::vector<WorkFailure>& failures, FolderUse use = FolderUse::kFresh) {
  const Records records = three_records();
  EmbeddingFolder folder(path, form, records, kSettingsOfTests, use);
  for (const int64_t i : order) folder.put(i, embedding(records, i, 2, true));
  folder.finish(failures);
}

std::vector<float> floats(const void* data, size_t bytes) {
  std::vector<float> values(bytes / sizeof(float));
  std::memcpy(values.data(), data, bytes);
  return values;
}

// A float32 NPY file of two dimensions.
std::vector<float> read_npy(const std::string& path, int64_t rows, int64_t columns) {
  const std::string content = read_whole(path);
  EXPECT_EQ(content.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<unsigned char>(content[8]) +
                        256 * static_cast<size_t>(static_cast<unsigned char>(content[9]));
  EXPECT_EQ((10 + length) % 64, 0u);
  EXPECT_TRUE(content.substr(10, length)
                  .starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                               std::to_string(rows) + ", " + std::to_string(columns) + "), }"))
      << content.substr(10, length);
  return floats(content.data() + 10 + length, content.size() - 10 - length);
}

std::vector<float> pooled(const std::vector<int64_t>& records, int64_t p) {
  std::vector<float> values;
  for (const int64_t i : records) {
    for (int64_t d = 0; d < kDim; ++d) values.push_back(value(i, p, d));
  }
  return values;
}

std::vector<float> residues(const std::vector<int64_t>& chosen) {
  std::vector<float> values;
  const Records records = three_records();
  for (const int64_t i : chosen) {
    const std::vector<float> rows = embedding(records, i, 0, true).residues;
    values.insert(values.end(), rows.begin(), rows.end());
  }
  return values;
}

TEST(EmbeddingFolder, NpyInInputOrderWhateverTheOrderOfWork) {
  const TemporaryFolder base;
  fill(base.file("out"), layout(EmbedFormat::kNpy, false), {1, 2, 0}, {});
  EXPECT_EQ(read_npy(base.file("out/mean.npy"), 3, kDim), pooled({0, 1, 2}, 0));
  EXPECT_EQ(read_npy(base.file("out/max.npy"), 3, kDim), pooled({0, 1, 2}, 1));
  EXPECT_EQ(read_npy(base.file("out/residues/sp_P1.npy"), 2, kDim), residues({0}));
  EXPECT_EQ(read_npy(base.file("out/residues/b.npy"), 3, kDim), residues({1}));
  EXPECT_EQ(read_npy(base.file("out/residues/b-2.npy"), 1, kDim), residues({2}));
  EXPECT_FALSE(fs::exists(base.file("out/.partial")));
  const Table index = read_table(base.file("out/index.tsv"));
  EXPECT_EQ(index.columns, (std::vector<std::string>{"number", "name", "length", "status", "row",
                                                     "first_residue_row", "header"}));
  ASSERT_EQ(index.rows.size(), 3u);
  EXPECT_EQ(index.rows[0].fields,
            (std::vector<std::string>{"1", "sp_P1", "2", "ok", "0", "0", "sp|P1 first \"one\""}));
  EXPECT_EQ(index.rows[2].fields,
            (std::vector<std::string>{"3", "b-2", "1", "ok", "2", "5", "b\tagain"}));
  EXPECT_EQ(json::parse(read_whole(base.file("out/embeddings.json"))), kSettingsOfTests);
}

TEST(EmbeddingFolder, OneArrayOfAllResidues) {
  const TemporaryFolder base;
  fill(base.file("out"), layout(EmbedFormat::kNpy, true), {0, 1, 2}, {});
  EXPECT_EQ(read_npy(base.file("out/residues.npy"), 6, kDim), residues({0, 1, 2}));
}

TEST(EmbeddingFolder, SafetensorsByName) {
  const TemporaryFolder base;
  fill(base.file("out"), layout(EmbedFormat::kSafetensors, false), {2, 0, 1}, {});
  const SafetensorsFile file(base.file("out/embeddings.safetensors"));
  EXPECT_EQ(file.tensors().size(), 5u);
  const StoredTensor& mean = file.at("mean");
  EXPECT_EQ(mean.shape, (std::vector<int64_t>{3, kDim}));
  EXPECT_EQ(floats(mean.data, mean.bytes), pooled({0, 1, 2}, 0));
  const StoredTensor& rows = file.at("residues/b");
  EXPECT_EQ(rows.shape, (std::vector<int64_t>{3, kDim}));
  EXPECT_EQ(floats(rows.data, rows.bytes), residues({1}));
}

TEST(EmbeddingFolder, TsvKeepsEveryBit) {
  const TemporaryFolder base;
  fill(base.file("out"), layout(EmbedFormat::kTsv, false), {0, 1, 2}, {});
  const Table mean = read_table(base.file("out/mean.tsv"));
  EXPECT_EQ(mean.columns, (std::vector<std::string>{"name", "v0", "v1", "v2"}));
  EXPECT_EQ(mean.rows.at(2).fields[0], "b-2");
  EXPECT_EQ(std::stof(mean.rows.at(2).fields[3]), value(2, 0, 2));
  const Table rows = read_table(base.file("out/residues.tsv"));
  ASSERT_EQ(rows.rows.size(), 6u);
  EXPECT_EQ(rows.rows[3].fields[1], "2");
  EXPECT_EQ(rows.rows[3].fields[2], "C");
  EXPECT_EQ(std::stof(rows.rows[3].fields[4]), -value(1, 1, 1));
}

TEST(EmbeddingFolder, FailedRecordsAreLeftOutAndTriedAgain) {
  const TemporaryFolder base;
  const std::string out = base.file("out");
  fill(out, layout(EmbedFormat::kNpy, true), {2, 0}, {{1, "out of memory"}});
  EXPECT_EQ(read_npy(out + "/max.npy", 2, kDim), pooled({0, 2}, 1));
  EXPECT_EQ(read_npy(out + "/residues.npy", 3, kDim), residues({0, 2}));
  const Table index = read_table(out + "/index.tsv");
  EXPECT_EQ(index.rows.at(1).fields,
            (std::vector<std::string>{"2", "b", "3", "out of memory", "", "", "b"}));
  EXPECT_EQ(index.rows.at(2).fields[4], "1");
  EXPECT_EQ(index.rows.at(2).fields[5], "2");
  {
    const Records records = three_records();
    EmbeddingFolder again(out, layout(EmbedFormat::kNpy, true), records, kSettingsOfTests,
                          FolderUse::kResume);
    EXPECT_FALSE(again.complete());
    EXPECT_TRUE(again.done(0));
    EXPECT_FALSE(again.done(1));
    again.put(1, embedding(records, 1, 2, true));
    again.finish({});
  }
  EXPECT_EQ(read_npy(out + "/residues.npy", 6, kDim), residues({0, 1, 2}));
  EXPECT_FALSE(fs::exists(out + "/.partial"));
}

TEST(EmbeddingFolder, StoppedRunGoesOnAndEndsWithTheSameBytes) {
  const TemporaryFolder base;
  const EmbedLayout form = layout(EmbedFormat::kSafetensors, false);
  const Records records = three_records();
  fill(base.file("whole"), form, {1, 0, 2}, {});
  const std::string out = base.file("out");
  {
    EmbeddingFolder folder(out, form, records, kSettingsOfTests, FolderUse::kResume);
    EXPECT_FALSE(folder.complete());
    folder.put(1, embedding(records, 1, 2, true));
    folder.sync();
    folder.put(0, embedding(records, 0, 2, true));
    // Ends here, as if killed: record 0 was not synced.
  }
  EXPECT_FALSE(fs::exists(out + "/index.tsv"));
  {
    EmbeddingFolder folder(out, form, records, kSettingsOfTests, FolderUse::kResume);
    EXPECT_FALSE(folder.done(0));
    EXPECT_TRUE(folder.done(1));
    EXPECT_FALSE(folder.done(2));
    for (const int64_t i : {0, 2}) folder.put(i, embedding(records, i, 2, true));
    folder.finish({});
  }
  for (const char* name : {"embeddings.safetensors", "index.tsv", "embeddings.json"}) {
    EXPECT_EQ(read_whole(out + "/" + name), read_whole(base.file("whole/") + name)) << name;
  }
  const EmbeddingFolder finished(out, form, records, kSettingsOfTests, FolderUse::kResume);
  EXPECT_TRUE(finished.complete());
}

TEST(EmbeddingFolder, RefusesWhatItDoesNotKnow) {
  const TemporaryFolder base;
  const Records records = three_records();
  const EmbedLayout form = layout(EmbedFormat::kTsv, false);
  const auto text = [&](const std::string& path, const json& settings, FolderUse use) {
    return message_of<std::runtime_error>(
        [&] { EmbeddingFolder(path, form, records, settings, use); });
  };
  const std::string out = base.file("out");
  fill(out, form, {0, 1, 2}, {});
  EXPECT_EQ(text(out, kSettingsOfTests, FolderUse::kFresh),
            "--out: " + out +
                " is not empty, expected a new folder (--resume goes on, --force "
                "replaces results)");
  json other = kSettingsOfTests;
  other["layer"] = 1;
  EXPECT_EQ(text(out, other, FolderUse::kResume),
            "--resume: layer is 1, expected 2 as in the run in " + out);
  const std::string file = base.write("file", "x");
  EXPECT_EQ(text(file, kSettingsOfTests, FolderUse::kForce),
            "--out: " + file + " is a file, expected a folder");
  // Force replaces results and nothing else.
  base.write("out/mine.txt", "mine");
  fill(out, layout(EmbedFormat::kNpy, false), {0, 1, 2}, {}, FolderUse::kForce);
  EXPECT_EQ(read_whole(out + "/mine.txt"), "mine");
  EXPECT_FALSE(fs::exists(out + "/mean.tsv"));
  EXPECT_TRUE(fs::exists(out + "/mean.npy"));
  EXPECT_EQ(message_of<favor::Error>([] { embed_format_from_string("hdf5"); }),
            "format is 'hdf5', expected safetensors | npy | tsv");
}

TEST(EmbeddingFolder, DamagedBeginningsAreNamed) {
  const TemporaryFolder base;
  const Records records = three_records();
  const EmbedLayout form = layout(EmbedFormat::kTsv, false);
  const std::string out = base.file("out");
  { EmbeddingFolder folder(out, form, records, kSettingsOfTests, FolderUse::kFresh); }
  fs::resize_file(out + "/.partial/done", 2);
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { EmbeddingFolder(out, form, records, kSettingsOfTests, FolderUse::kResume); }),
            out + "/.partial/done: has 2 bytes, expected 3");
}

}  // namespace
}  // namespace performer
