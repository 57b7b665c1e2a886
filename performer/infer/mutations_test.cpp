// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/mutations.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

constexpr std::string_view kWild = "MKTAYIAKQR";
const Tokenizer kTokenizer = Tokenizer::protein();

Variant parse(std::string_view text, int64_t offset = 0) {
  return parse_mutant(text, kWild, offset, kTokenizer);
}

TEST(ParseMutant, Substitutions) {
  const Variant one = parse("K2R");
  EXPECT_EQ(one.residues, "MRTAYIAKQR");
  EXPECT_FALSE(one.has_indel);
  EXPECT_EQ(one.substitutions, (std::vector<Substitution>{{1, 'K', 'R'}}));
  // Whatever their order; the first and the last residue too.
  const Variant more = parse("R10W:M1V:A4A");
  EXPECT_EQ(more.residues, "VKTAYIAKQW");
  EXPECT_EQ(more.substitutions, (std::vector<Substitution>{{0, 'M', 'V'}, {9, 'R', 'W'}}));
  EXPECT_EQ(parse("K102R", 100).residues, one.residues);
  EXPECT_EQ(parse("K1R", -1).residues, one.residues);
  EXPECT_TRUE(parse("WT").substitutions.empty());
  EXPECT_EQ(parse("_wt").residues, kWild);
}

TEST(ParseMutant, InsertionsAndDeletions) {
  const auto residues = [](std::string_view text) {
    const Variant variant = parse(text);
    EXPECT_TRUE(variant.has_indel) << text;
    EXPECT_TRUE(variant.substitutions.empty()) << text;
    return variant.residues;
  };
  EXPECT_EQ(residues("K2del"), "MTAYIAKQR");
  EXPECT_EQ(residues("K2_A4del"), "MYIAKQR");
  EXPECT_EQ(residues("K2_T3insGGS"), "MKGGSTAYIAKQR");
  EXPECT_EQ(residues("K2delinsGH"), "MGHTAYIAKQR");
  EXPECT_EQ(residues("K2_A4delinsW"), "MWYIAKQR");
  EXPECT_EQ(residues("M1del:R10del"), "KTAYIAKQ");
  EXPECT_EQ(residues("T3G:K2_T3insW:K2R"), "MRWGAYIAKQR");
  // As long as what it replaces, it is nothing but substitutions.
  const Variant same = parse("K2_A4delinsKTG");
  EXPECT_EQ(same.substitutions, (std::vector<Substitution>{{3, 'A', 'G'}}));
}

TEST(ParseMutant, SaysWhatIsWrong) {
  const auto text = [](std::string_view mutant, int64_t offset = 0) {
    return message_of<favor::Error>([&] { parse(mutant, offset); });
  };
  EXPECT_EQ(text(""), "is empty, expected a mutation such as A24G, or WT");
  EXPECT_EQ(text("A2G"), "'A2G': position 2 is A, expected K as in the wild type");
  EXPECT_EQ(text("K11R"), "'K11R': position 11 is outside the wild type, expected 1 to 10");
  EXPECT_EQ(text("K0R"), "'K0R': position 0 is outside the wild type, expected 1 to 10");
  EXPECT_EQ(text("K2R", 100), "'K2R': position 2 is outside the wild type, expected 101 to 110");
  EXPECT_EQ(text("K2J"), "'K2J': letter 3 is 'J', expected one of ACDEFGHIKLMNPQRSTVWYBOUXZ");
  EXPECT_EQ(text("K2*"), "'K2*': letter 3 is '*', expected one of ACDEFGHIKLMNPQRSTVWYBOUXZ");
  EXPECT_EQ(text("k2R"), "'k2R': letter 1 is 'k', expected the wild type's residue");
  EXPECT_EQ(text("K2r"), "'K2r': letter 3 is 'r', expected one of ACDEFGHIKLMNPQRSTVWYBOUXZ");
  EXPECT_EQ(text("KR"), "'KR': letter 2 is 'R', expected a position");
  EXPECT_EQ(text("K"), "'K': letter 2 is its end, expected a position");
  EXPECT_EQ(text("K2"), "'K2': ends here, expected a residue");
  EXPECT_EQ(text("K2RG"), "'K2RG': 2 letters follow the position, expected one (or del or delins)");
  EXPECT_EQ(text("K2R:"), "'': letter 1 is its end, expected the wild type's residue");
  EXPECT_EQ(text("K2R:K2G"),
            "'K2R:K2G': K2R and K2G change the same place, expected one change per place");
  EXPECT_EQ(text("T3del:K2_A4del"),
            "'T3del:K2_A4del': K2_A4del and T3del change the same place, expected one change per "
            "place");
  EXPECT_EQ(text("K2_T3insG:K2_T3insW"),
            "'K2_T3insG:K2_T3insW': K2_T3insG and K2_T3insW change the same place, expected one "
            "change per place");
  EXPECT_EQ(text("K2_A4insG"),
            "'K2_A4insG': an insertion stands between neighbours, expected "
            "position 3 after the underscore");
  EXPECT_EQ(text("A4_K2del"), "'A4_K2del': the range ends at 2, expected a position after 4");
  EXPECT_EQ(text("K2_T3R"), "'K2_T3R': 'R' follows a range, expected del, ins or delins");
  EXPECT_EQ(text("K2_T3ins"), "'K2_T3ins': ends here, expected a residue");
  EXPECT_EQ(text("M1_R10del"), "'M1_R10del': nothing is left of the sequence");
  EXPECT_EQ(text("\xce\xb1"), "'\xce\xb1': letter 1 is byte 206, expected the wild type's residue");
  EXPECT_EQ(text("K99999999999999999999R"),
            "'K99999999999999999999R': letter 2 is '9', expected a position");
}

TEST(VariantOfSequence, FindsWhatDiffers) {
  const Variant one = variant_of_sequence("MRTAYIAKQR", kWild, kTokenizer);
  EXPECT_EQ(one.substitutions, (std::vector<Substitution>{{1, 'K', 'R'}}));
  const Variant longer = variant_of_sequence("MKTAYIAKQRR", kWild, kTokenizer);
  EXPECT_TRUE(longer.has_indel);
  EXPECT_EQ(longer.residues, "MKTAYIAKQRR");
  EXPECT_EQ(message_of<favor::Error>([] { variant_of_sequence("MK-", kWild, kTokenizer); }),
            "'MK-': letter 3 is '-', expected one of ACDEFGHIKLMNPQRSTVWYBOUXZ");
  EXPECT_EQ(message_of<favor::Error>([] { variant_of_sequence("", kWild, kTokenizer); }),
            "is empty, expected a sequence");
}

}  // namespace
}  // namespace performer
