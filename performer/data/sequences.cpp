// SPDX-License-Identifier: Apache-2.0
#include "performer/data/sequences.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/token_file.h"

namespace performer {
namespace {

// The finaliser of SplitMix64: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

SequenceSet::SequenceSet(std::shared_ptr<const void> owner, const uint8_t* tokens,
                         std::span<const int64_t> offsets)
    : owner_(std::move(owner)), view_tokens_(tokens), view_offsets_(offsets) {
  FAVOR_CHECK(owner_ != nullptr && !offsets.empty(), "SequenceSet: there are ", offsets.size(),
              " offsets, expected at least 1 and an owner");
}

int64_t SequenceSet::fingerprint() const {
  uint64_t hash = static_cast<uint64_t>(size());
  for (int64_t i = 0; i < size(); ++i) {
    const std::span<const uint8_t> tokens = (*this)[i];
    // Each sequence is hashed under what came before it, so order counts.
    hash = sequence_hash({reinterpret_cast<const char*>(tokens.data()), tokens.size()}, hash);
  }
  return static_cast<int64_t>(hash >> 1);
}

void SequenceSet::add(std::span<const uint8_t> tokens) {
  FAVOR_CHECK(!is_view(), "add: the set is a view of a file, expected one that owns its tokens");
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  offsets_.push_back(static_cast<int64_t>(tokens_.size()));
}

SequenceSet SequenceSet::sample(int64_t max_tokens, uint64_t seed) const {
  FAVOR_CHECK(max_tokens >= 1, "sample: max_tokens is ", max_tokens, ", expected at least 1");
  if (num_tokens() <= max_tokens) return *this;
  std::vector<int64_t> chosen(size());
  std::iota(chosen.begin(), chosen.end(), 0);
  favor::RandomStream random(mix(seed), 0);
  int64_t count = 0;
  for (int64_t tokens = 0; count < size(); ++count) {
    const auto other = count + static_cast<int64_t>(random.below(size() - count));
    std::swap(chosen[count], chosen[other]);
    tokens += length(chosen[count]);
    if (tokens > max_tokens && count > 0) break;
  }
  chosen.resize(count);
  std::sort(chosen.begin(), chosen.end());
  SequenceSet result;
  for (const int64_t i : chosen) result.add((*this)[i]);
  return result;
}

void SplitOptions::check() const {
  FAVOR_CHECK(valid_fraction >= 0 && valid_fraction < 1, "valid_fraction is ", valid_fraction,
              ", expected 0 to 1, 1 excluded");
  FAVOR_CHECK(test_fraction >= 0 && test_fraction < 1, "test_fraction is ", test_fraction,
              ", expected 0 to 1, 1 excluded");
  FAVOR_CHECK(valid_fraction + test_fraction < 1, "valid_fraction + test_fraction is ",
              valid_fraction + test_fraction, ", expected less than 1 (nothing left to train on)");
}

uint64_t sequence_hash(std::string_view residues, uint64_t seed) {
  uint64_t state = mix(seed);
  for (size_t begin = 0; begin < residues.size(); begin += 8) {
    // Assembled byte by byte: the same number whatever the machine's byte order.
    uint64_t word = 0;
    const size_t end = std::min(begin + 8, residues.size());
    for (size_t i = begin; i < end; ++i) {
      word |= static_cast<uint64_t>(static_cast<unsigned char>(residues[i])) << (8 * (i - begin));
    }
    state = mix(state ^ word);
  }
  return mix(state ^ residues.size());
}

Split split_of(std::string_view residues, const SplitOptions& options) {
  return split_of_hash(sequence_hash(residues, options.seed), options);
}

double hash_fraction(uint64_t hash) {
  // 53 bits, so that the fraction is an exact double.
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

Split split_of_hash(uint64_t hash, const SplitOptions& options) {
  const double place = hash_fraction(hash);
  if (place < options.test_fraction) return Split::kTest;
  if (place < options.test_fraction + options.valid_fraction) return Split::kValid;
  return Split::kTrain;
}

std::string SplitSequences::summary() const {
  std::string text =
      stored ? favor::message("token file of ", all.size(), " sequences, ", all.num_tokens(),
                              " residues, divided as it says (valid_fraction, test_fraction and "
                              "split_seed do not apply)")
             : counts.summary();
  if (num_duplicates > 0) text += favor::message(", ", num_duplicates, " duplicate sequences");
  const auto side = [](const char* name, const SequenceSet& set) {
    return favor::message(name, " ", set.size(), " sequences, ", set.num_tokens(), " residues");
  };
  return text + "\n" + side("train", train) + "; " + side("valid", valid) + "; " +
         side("test", test) + (ood.size() > 0 ? "; " + side("ood", ood) : "");
}

SplitSequences read_fasta_splits(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                 const SplitOptions& options) {
  options.check();
  FAVOR_CHECK(!paths.empty(), "read_fasta_splits: paths is empty, expected at least one file");
  SplitSequences result;
  std::vector<uint64_t> hashes;
  for (const std::string& path : paths) {
    FastaReader reader(path);
    FastaRecord record;
    while (reader.next(record)) {
      if (record.sequence.empty()) continue;
      hashes.push_back(sequence_hash(record.sequence, options.seed));
      const Split split = split_of(record.sequence, options);
      SequenceSet& set = split == Split::kTrain   ? result.train
                         : split == Split::kValid ? result.valid
                                                  : result.test;
      set.add(tokenizer.encode(record.sequence));
    }
    result.counts += reader.counts();
  }
  if (hashes.empty()) {
    throw std::runtime_error(favor::message(paths[0], ": no record holds a residue"));
  }
  std::sort(hashes.begin(), hashes.end());
  const auto distinct = std::unique(hashes.begin(), hashes.end());
  result.num_duplicates = hashes.end() - distinct;
  return result;
}

SplitSequences read_splits(const std::string& path, const Tokenizer& tokenizer,
                           const SplitOptions& options) {
  if (!TokenFile::recognises(path)) return read_fasta_splits({path}, tokenizer, options);
  const TokenFile file(path);
  SplitSequences result;
  result.stored = true;
  result.train = file.set(TokenSet::kTrain);
  result.valid = file.set(TokenSet::kValid);
  result.test = file.set(TokenSet::kTest);
  result.ood = file.set(TokenSet::kOod);
  result.all = file.all();
  return result;
}

}  // namespace performer
