// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/mutations.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "favor/check.h"

namespace performer {
namespace {

// Residues [begin, end) of the wild type become `replacement`.
struct Edit {
  int64_t begin = 0;
  int64_t end = 0;
  std::string replacement;
  std::string text;
};

std::string shown(std::string_view text, size_t at) {
  if (at >= text.size()) return "its end";
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte >= 0x7f) return favor::message("byte ", static_cast<int>(byte));
  return favor::message("'", text[at], "'");
}

void check_letters(std::string_view letters, std::string_view whole, size_t at,
                   const Tokenizer& tokenizer) {
  for (size_t i = 0; i < letters.size(); ++i) {
    try {
      tokenizer.encode(letters.substr(i, 1));
    } catch (const favor::Error&) {
      throw favor::Error(favor::message("'", whole, "': letter ", at + i + 1, " is ",
                                        shown(whole, at + i),
                                        ", expected one of ACDEFGHIKLMNPQRSTVWYBOUXZ"));
    }
  }
}

class PartParser {
 public:
  PartParser(std::string_view text, std::string_view wild_type, int64_t offset,
             const Tokenizer& tokenizer)
      : text_(text), wild_type_(wild_type), offset_(offset), tokenizer_(tokenizer) {}

  Edit parse() {
    Edit edit;
    edit.text = std::string(text_);
    edit.begin = residue();
    edit.end = edit.begin + 1;
    const bool range = at_ < text_.size() && text_[at_] == '_';
    if (range) {
      ++at_;
      const int64_t last = residue();
      FAVOR_CHECK(last > edit.begin, "'", text_, "': the range ends at ", last + 1 + offset_,
                  ", expected a position after ", edit.begin + 1 + offset_);
      edit.end = last + 1;
    }
    const std::string_view rest = text_.substr(at_);
    if (rest == "del") return edit;
    if (rest.starts_with("delins")) {
      edit.replacement = letters(6);
    } else if (range && rest.starts_with("ins")) {
      FAVOR_CHECK(edit.end == edit.begin + 2, "'", text_,
                  "': an insertion stands between neighbours, expected position ",
                  edit.begin + 2 + offset_, " after the underscore");
      // Between the two residues, both of which stay.
      edit.end = ++edit.begin;
      edit.replacement = letters(3);
    } else {
      FAVOR_CHECK(!range, "'", text_, "': ", shown(text_, at_), " follows a range, expected del, ",
                  "ins or delins");
      edit.replacement = letters(0);
      FAVOR_CHECK(edit.replacement.size() == 1, "'", text_, "': ", edit.replacement.size(),
                  " letters follow the position, expected one (or del or delins)");
    }
    return edit;
  }

 private:
  // A letter and a number; returns the place in the wild type, which must hold the letter.
  int64_t residue() {
    FAVOR_CHECK(at_ < text_.size() && text_[at_] >= 'A' && text_[at_] <= 'Z', "'", text_,
                "': letter ", at_ + 1, " is ", shown(text_, at_),
                ", expected the wild type's residue");
    const char letter = text_[at_++];
    int64_t number = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    FAVOR_CHECK(error == std::errc(), "'", text_, "': letter ", at_ + 1, " is ", shown(text_, at_),
                ", expected a position");
    at_ += static_cast<size_t>(end - begin);
    const auto length = static_cast<int64_t>(wild_type_.size());
    FAVOR_CHECK(number > offset_ && number <= offset_ + length, "'", text_, "': position ", number,
                " is outside the wild type, expected ", offset_ + 1, " to ", offset_ + length);
    const int64_t place = number - offset_ - 1;
    FAVOR_CHECK(wild_type_[place] == letter, "'", text_, "': position ", number, " is ", letter,
                ", expected ", wild_type_[place], " as in the wild type");
    return place;
  }

  // All that stands `skip` after here.
  std::string letters(size_t skip) {
    at_ += skip;
    const std::string_view found = text_.substr(at_);
    FAVOR_CHECK(!found.empty(), "'", text_, "': ends here, expected a residue");
    check_letters(found, text_, at_, tokenizer_);
    return std::string(found);
  }

  std::string_view text_;
  std::string_view wild_type_;
  int64_t offset_;
  const Tokenizer& tokenizer_;
  size_t at_ = 0;
};

Variant with_substitutions(std::string residues, std::string_view wild_type) {
  Variant variant;
  variant.residues = std::move(residues);
  for (size_t i = 0; i < wild_type.size(); ++i) {
    if (variant.residues[i] == wild_type[i]) continue;
    variant.substitutions.push_back({static_cast<int64_t>(i), wild_type[i], variant.residues[i]});
  }
  return variant;
}

bool means_wild_type(std::string_view text) {
  return text == "WT" || text == "wt" || text == "_wt";
}

}  // namespace

Variant parse_mutant(std::string_view text, std::string_view wild_type, int64_t offset,
                     const Tokenizer& tokenizer) {
  FAVOR_CHECK(!text.empty(), "is empty, expected a mutation such as A24G, or WT");
  if (means_wild_type(text)) return with_substitutions(std::string(wild_type), wild_type);
  std::vector<Edit> edits;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    edits.push_back(
        PartParser(text.substr(begin, end - begin), wild_type, offset, tokenizer).parse());
    begin = end + 1;
  }
  // An insertion stands before the residue at its place.
  std::stable_sort(edits.begin(), edits.end(), [](const Edit& a, const Edit& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::string residues;
  int64_t at = 0;
  bool has_indel = false;
  for (size_t i = 0; i < edits.size(); ++i) {
    const Edit& edit = edits[i];
    // Overlapping, or two insertions in one place, whose order nobody could tell.
    const bool clash = i > 0 && (edit.begin < edits[i - 1].end ||
                                 (edit.begin == edits[i - 1].begin && edit.end == edit.begin));
    FAVOR_CHECK(!clash, "'", text, "': ", edits[i > 0 ? i - 1 : 0].text, " and ", edit.text,
                " change the same place, expected one change per place");
    residues.append(wild_type.substr(at, edit.begin - at));
    residues += edit.replacement;
    at = edit.end;
    has_indel = has_indel || edit.end - edit.begin != std::ssize(edit.replacement);
  }
  residues.append(wild_type.substr(at));
  FAVOR_CHECK(!residues.empty(), "'", text, "': nothing is left of the sequence");
  if (!has_indel) return with_substitutions(std::move(residues), wild_type);
  Variant variant;
  variant.residues = std::move(residues);
  variant.has_indel = true;
  return variant;
}

Variant variant_of_sequence(std::string_view residues, std::string_view wild_type,
                            const Tokenizer& tokenizer) {
  FAVOR_CHECK(!residues.empty(), "is empty, expected a sequence");
  check_letters(residues, residues, 0, tokenizer);
  if (residues.size() == wild_type.size()) {
    return with_substitutions(std::string(residues), wild_type);
  }
  Variant variant;
  variant.residues = std::string(residues);
  variant.has_indel = true;
  return variant;
}

}  // namespace performer
