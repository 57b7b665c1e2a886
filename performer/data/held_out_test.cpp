// SPDX-License-Identifier: Apache-2.0
#include "performer/data/held_out.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

using Side = HeldOutClusters::Side;

constexpr const char* kClusters = "A\tA\nA\tB\nA\tC\nD\tD\nE\tE\r\nE\tF\n";

TEST(HeldOutClusters, HoldsOutWholeClustersOfEnoughMembers) {
  const TemporaryFolder folder;
  const std::string path = folder.write("c.tsv", kClusters);
  const auto sides = [&](int64_t min_size) {
    const HeldOutClusters clusters(path, min_size, 1, 0);
    EXPECT_EQ(clusters.num_clusters(), 3);
    EXPECT_EQ(clusters.num_members(), 6);
    std::string text;
    for (const char* name : {"A", "B", "C", "D", "E", "F"}) {
      text += clusters.side_of(name) == Side::kHeldOut ? '1' : '0';
    }
    return text;
  };
  EXPECT_EQ(sides(1), "111111");
  EXPECT_EQ(sides(2), "111011");
  EXPECT_EQ(sides(3), "111000");
  EXPECT_EQ(sides(4), "000000");
}

TEST(HeldOutClusters, KnowsNamesWithBars) {
  const TemporaryFolder folder;
  const HeldOutClusters clusters(folder.write("c.tsv", kClusters), 3, 1, 0);
  EXPECT_EQ(clusters.num_held_out(), 1);
  EXPECT_EQ(clusters.side_of("sp|B|HBA_HUMAN"), Side::kHeldOut);
  EXPECT_EQ(clusters.side_of("sp|D|HBA_HUMAN"), Side::kIn);
  EXPECT_EQ(clusters.side_of("tr|E"), Side::kIn);
  EXPECT_EQ(clusters.side_of("sp|X|A"), Side::kUnknown);
  EXPECT_EQ(clusters.side_of("X"), Side::kUnknown);
}

TEST(HeldOutClusters, TakesAShareByHashAndSeed) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += favor::message("r", i, "\tr", i, "\n");
  const std::string path = folder.write("c.tsv", text);
  const auto chosen = [&](double fraction, uint64_t seed) {
    const HeldOutClusters clusters(path, 1, fraction, seed);
    std::set<int> numbers;
    for (int i = 0; i < 1000; ++i) {
      if (clusters.side_of(favor::message("r", i)) == Side::kHeldOut) numbers.insert(i);
    }
    EXPECT_EQ(std::ssize(numbers), clusters.num_held_out());
    return numbers;
  };
  const std::set<int> fifth = chosen(0.2, 0);
  // Five standard deviations of a binomial.
  EXPECT_NEAR(double(fifth.size()), 200, 5 * 12.7);
  EXPECT_EQ(chosen(0.2, 0), fifth);
  EXPECT_NE(chosen(0.2, 1), fifth);
  const std::set<int> half = chosen(0.5, 0);
  EXPECT_TRUE(std::includes(half.begin(), half.end(), fifth.begin(), fifth.end()));
}

TEST(HeldOutClusters, NamesBadLines) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text) {
    const std::string path = folder.write("c.tsv", text);
    const std::string full =
        message_of<std::runtime_error>([&] { HeldOutClusters clusters(path, 1, 1, 0); });
    return full.substr(path.size());
  };
  for (const char* line : {"A\n", "A\t\n", "\tA\n", "A\tB\tC\n", "\n"}) {
    EXPECT_EQ(error("A\tA\n" + std::string(line)),
              ":2: expected two names with a tab between them");
  }
  EXPECT_EQ(error("A\tB\nC\tB\n"), ":2: B is in a second cluster, expected one");
  EXPECT_EQ(error(""), ": holds no line, expected clusters");
  EXPECT_EQ(message_of<std::runtime_error>([&] { HeldOutClusters("/no/file", 1, 1, 0); }),
            "/no/file: cannot open: No such file or directory");
  const std::string path = folder.write("c.tsv", kClusters);
  EXPECT_EQ(message_of<favor::Error>([&] { HeldOutClusters(path, 0, 1, 0); }),
            "ood_min_cluster is 0, expected at least 1");
  EXPECT_EQ(message_of<favor::Error>([&] { HeldOutClusters(path, 1, 0, 0); }),
            "ood_fraction is 0, expected more than 0 and at most 1");
}

TEST(GoTerms, AreFoundInAnyText) {
  EXPECT_EQ(go_terms_in("P1|GO:0000042,GO:0000007,GO:0000042 GO:123 xGO:1234567"),
            (std::vector<uint32_t>{7, 42, 1234567}));
  EXPECT_TRUE(go_terms_in("GO:").empty());
  EXPECT_EQ(go_term(42), "GO:0000042");
}

TEST(GoTerms, AreReadWithTheirDescendants) {
  const TemporaryFolder folder;
  const std::string graph =
      folder.write("go.txt",
                   "GO:0000001\tGO:0000002\t1\tis_a\nGO:0000002\tGO:0000003\t1\tpart_of\n"
                   "GO:0000002\tGO:0000004\t1\tregulates\nGO:0000003\tGO:0000001\t1\tis_a\n"
                   "obsolete_function\tGO:0000005\t1\tis_a\n");
  const auto terms = [](const std::string& list, const std::string& path) {
    const auto found = read_held_out_terms(list, path);
    return std::set<uint32_t>(found.begin(), found.end());
  };
  EXPECT_EQ(terms("GO:0000002", ""), (std::set<uint32_t>{2}));
  EXPECT_EQ(terms("GO:0000002,GO:0000009", ""), (std::set<uint32_t>{2, 9}));
  // A cycle, which a graph of terms should not have, ends too.
  EXPECT_EQ(terms("GO:0000002", graph), (std::set<uint32_t>{1, 2, 3}));
  EXPECT_EQ(terms("GO:0000004", graph), (std::set<uint32_t>{4}));
  EXPECT_EQ(message_of<std::runtime_error>([&] { terms("GO:0000009", graph); }),
            graph + ": does not have GO:0000009, expected every term held out");
  const std::string broken = folder.write("broken.txt", "GO:0000001\tGO:0000002\t1\tis_a\nx\n");
  EXPECT_EQ(message_of<std::runtime_error>([&] { terms("GO:0000001", broken); }),
            broken + ":2: expected parent, child and relation with tabs between");
  for (const char* list : {"", "GO:1", "GO:0000001,", "0000001", "GO:00000011"}) {
    EXPECT_NE(message_of<favor::Error>([&] {
                terms(list, "");
              }).find("is no term, expected GO: and seven digits"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace performer
