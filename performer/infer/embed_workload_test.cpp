// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/embed_workload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "performer/nn/testing.h"

namespace performer {
namespace {

// Proteins of 1 to `count` residues and an empty one.
std::string write_proteins(int64_t count) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "performer_embed_workload.fasta").string();
  std::ofstream file(path);
  file << ">empty\n";
  for (int64_t i = 1; i <= count; ++i) {
    file << ">p" << i << "\n" << std::string(static_cast<size_t>(i), 'A') << "\n";
  }
  return path;
}

EmbedWorkOptions tiny(const std::string& data) {
  EmbedWorkOptions options;
  options.model.causal = false;
  options.model.dim = 16;
  options.model.num_layers = 1;
  options.model.num_heads = 2;
  options.model.ff_dim = 32;
  options.model.positions = PositionKind::kSinusoidal;
  options.model.attention.num_features = 8;
  options.data = data;
  options.count = 30;
  options.groups = 4;
  options.batch_tokens = 64;
  return options;
}

TEST(EmbedWorkload, GroupsHoldEveryProteinOnce) {
  const std::string path = write_proteins(40);
  EmbedWorkload work(tiny(path));
  EXPECT_EQ(work.groups(), 4);
  int64_t total = 0, first = 0;
  for (int64_t group = 0; group < 4; ++group) {
    const int64_t residues = work.run();
    EXPECT_GT(residues, 465 / 8);
    if (group == 0) first = residues;
    total += residues;
  }
  EXPECT_EQ(total, 465);  // 1 + 2 + ... + 30
  EXPECT_EQ(work.run(), first);
  std::filesystem::remove(path);
}

TEST(EmbedWorkload, SaysWhatIsMissing) {
  const std::string path = write_proteins(10);
  EmbedWorkOptions options = tiny(path);
  EXPECT_EQ(error_of([&] { EmbedWorkload work(options); }),
            path + " holds 10 records with a residue, expected at least 30");
  options.data = "";
  EXPECT_EQ(error_of([&] { EmbedWorkload work(options); }),
            "data is missing, expected a FASTA file (to embed)");
  options = tiny(path);
  options.groups = 31;
  EXPECT_EQ(error_of([&] { EmbedWorkload work(options); }), "groups is 31, expected 1 to 30");
  options.count = 10;
  options.groups = 10;
  EXPECT_EQ(error_of([&] { EmbedWorkload work(options); }),
            "groups is 10, expected at most 2 (passes of 10 records)");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace performer
