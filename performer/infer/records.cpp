// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/records.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>

#include "favor/check.h"
#include "favor/sha256.h"

namespace performer {
namespace {

constexpr size_t kLongestName = 100;
constexpr int64_t kBlockRecords = 65536;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string safe_name(const std::string& name) {
  std::string safe;
  for (const char c : name.substr(0, kLongestName)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-';
    safe += plain ? c : '_';
  }
  if (safe.empty()) return "record";
  // Hidden files, `.` and `..`, and what a command would take for an option.
  if (safe[0] == '.' || safe[0] == '-') safe[0] = '_';
  return safe;
}

Records read_some(FastaReader& reader, const Tokenizer& tokenizer, int64_t max_residues,
                  int64_t max_records) {
  Records records;
  records.tokenizer = tokenizer;
  for (FastaRecord record; records.sequences.num_tokens() < max_residues &&
                           records.size() < max_records && reader.next(record);) {
    records.sequences.add(tokenizer.encode(record.sequence));
    records.names.push_back(std::move(record.name));
    records.headers.push_back(std::move(record.header));
  }
  records.counts = reader.counts();
  return records;
}

}  // namespace

std::string Records::label(int64_t i) const {
  return favor::message("sequence ", first + i + 1, names[i].empty() ? "" : " (" + names[i] + ")");
}

std::string Records::fingerprint() const {
  favor::Sha256 hash;
  const auto add = [&](const void* data, size_t bytes) {
    const uint64_t length = bytes;  // in front, so that no two lists join to the same bytes
    hash.update(&length, sizeof length);
    hash.update(data, bytes);
  };
  for (int64_t i = 0; i < size(); ++i) {
    add(headers[i].data(), headers[i].size());
    add(sequences[i].data(), sequences[i].size());
  }
  return hash.digest();
}

Records read_records(const std::string& path, const Tokenizer& tokenizer) {
  FastaReader reader(path);
  return read_some(reader, tokenizer, INT64_MAX, INT64_MAX);
}

Records read_block(FastaReader& reader, const Tokenizer& tokenizer, int64_t max_residues,
                   int64_t first) {
  Records records = read_some(reader, tokenizer, max_residues, kBlockRecords);
  records.first = first;
  return records;
}

std::vector<std::string> safe_names(const std::vector<std::string>& names) {
  std::vector<std::string> safe;
  std::set<std::string> taken;
  for (const std::string& name : names) taken.insert(lower(safe_name(name)));
  std::map<std::string, int64_t> last_number;
  for (const std::string& name : names) {
    const std::string base = safe_name(name);
    int64_t& number = last_number[lower(base)];
    std::string chosen = base;
    if (++number > 1) {
      // A numbered name must not be that of another record.
      do {
        chosen = favor::message(base, "-", number);
      } while (taken.count(lower(chosen)) > 0 && ++number > 0);
    }
    safe.push_back(chosen);
  }
  return safe;
}

int64_t parse_bytes(const std::string& name, std::string_view text) {
  std::string_view digits = text;
  int64_t unit = 1;
  constexpr std::string_view kUnits = "KMGT";
  if (!digits.empty()) {
    const char last = static_cast<char>(std::toupper(static_cast<unsigned char>(digits.back())));
    const size_t power = kUnits.find(last);
    if (power != std::string_view::npos) {
      unit = int64_t{1} << (10 * (power + 1));
      digits.remove_suffix(1);
    }
  }
  int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  int64_t bytes = 0;
  FAVOR_CHECK(error == std::errc() && end == digits.data() + digits.size() && count >= 0 &&
                  !__builtin_mul_overflow(count, unit, &bytes),
              name, " is '", text, "', expected a number of bytes such as 4G or 500M");
  return bytes;
}

}  // namespace performer
