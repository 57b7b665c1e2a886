// SPDX-License-Identifier: Apache-2.0
#include "performer/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "favor/check.h"
#include "favor/sha256.h"
#include "favor/words.h"
#include "performer/data/atomic_file.h"
#include "performer/data/mapped_file.h"

namespace performer {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr favor::Word<TokenSet> kSets[] = {{TokenSet::kTrain, "train"},
                                           {TokenSet::kValid, "valid"},
                                           {TokenSet::kTest, "test"},
                                           {TokenSet::kOod, "ood"}};

constexpr std::string_view kMagic = "PRFTOKEN";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 64;  // hexadecimal

// The first bytes of the file.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t head_bytes;
  uint64_t file_bytes;
  uint64_t num_sequences;
  uint64_t num_tokens;
  uint64_t header_bytes;
  uint64_t description_bytes;
  uint64_t set_sizes[kNumTokenSets];
  char alphabet[40];  // one character per id, zeros after the last
};
static_assert(sizeof(Head) == 128);

// Where each part begins; offsets of N sequences are N + 1 numbers.
struct Places {
  uint64_t offsets, header_offsets, tokens, headers, description, digest, end;
};

Places places_of(const Head& head) {
  Places places{};
  places.offsets = sizeof(Head);
  places.header_offsets = places.offsets + 8 * (head.num_sequences + 1);
  places.tokens = places.header_offsets + 8 * (head.num_sequences + 1);
  places.headers = places.tokens + head.num_tokens;
  places.description = places.headers + head.header_bytes;
  places.digest = places.description + head.description_bytes;
  places.end = places.digest + kDigestBytes;
  return places;
}

std::string alphabet_text() {
  const Tokenizer tokenizer = Tokenizer::protein();
  std::vector<uint8_t> ids(tokenizer.size());
  std::iota(ids.begin(), ids.end(), uint8_t{0});
  return tokenizer.decode(ids);
}

// Collects small writes and hashes what passes.
class HashedWriter {
 public:
  explicit HashedWriter(const std::string& path) : file_(path) { buffer_.reserve(kBytes); }

  void write(const void* data, size_t bytes) {
    if (buffer_.size() + bytes > kBytes) flush();
    if (bytes > kBytes) {
      pass_on(data, bytes);
      return;
    }
    const auto* from = static_cast<const uint8_t*>(data);
    buffer_.insert(buffer_.end(), from, from + bytes);
  }

  void commit() {
    flush();
    const std::string digest = sha_.digest();
    file_.write(digest.data(), digest.size());
    file_.commit();
  }

 private:
  static constexpr size_t kBytes = 1 << 20;

  void flush() {
    pass_on(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  void pass_on(const void* data, size_t bytes) {
    sha_.update(data, bytes);
    file_.write(data, bytes);
  }

  favor::AtomicFile file_;
  favor::Sha256 sha_;
  std::vector<uint8_t> buffer_;
};

// Offsets of the pieces in their order in the file.
void write_offsets(HashedWriter& out, const std::vector<int64_t>& order,
                   std::span<const int64_t> ends) {
  int64_t at = 0;
  out.write(&at, sizeof at);
  for (const int64_t i : order) {
    at += ends[i + 1] - ends[i];
    out.write(&at, sizeof at);
  }
}

void write_pieces(HashedWriter& out, const std::vector<int64_t>& order,
                  std::span<const int64_t> ends, std::span<const uint8_t> bytes) {
  for (const int64_t i : order) {
    out.write(bytes.data() + ends[i], static_cast<size_t>(ends[i + 1] - ends[i]));
  }
}

uint64_t total_of(const std::vector<int64_t>& order, std::span<const int64_t> ends) {
  uint64_t total = 0;
  for (const int64_t i : order) total += static_cast<uint64_t>(ends[i + 1] - ends[i]);
  return total;
}

}  // namespace

std::string to_string(TokenSet set) {
  return favor::word_of(kSets, set);
}

TokenSet token_set_from_string(std::string_view word) {
  return favor::value_of(kSets, word, "set");
}

struct TokenFile::Parts {
  explicit Parts(const std::string& path) : file(path) {
    check_head();
    places = places_of(head);
    check_digest();
    offsets = offsets_at(places.offsets, head.num_tokens, "sequence");
    header_offsets = offsets_at(places.header_offsets, head.header_bytes, "header");
    check_tokens();
  }

  template <class... Args>
  [[noreturn]] void fail(uint64_t at, const Args&... args) const {
    throw std::runtime_error(favor::message(file.path(), ": byte ", at, ": ", args...));
  }

  void check_head() {
    const auto bytes = file.bytes();
    if (bytes.size() < kMagic.size() ||
        std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
      fail(0, "begins otherwise than with ", kMagic, ", expected a token file");
    }
    if (bytes.size() < sizeof(Head)) {
      fail(bytes.size(), "the file ends, expected a head of ", sizeof(Head), " bytes (cut off?)");
    }
    std::memcpy(&head, bytes.data(), sizeof(Head));
    if (head.version != kVersion) {
      fail(offsetof(Head, version), "version is ", head.version, ", expected ", kVersion,
           " (made by another version of performer; `performer data prepare` makes it anew)");
    }
    if (head.head_bytes != sizeof(Head)) {
      fail(offsetof(Head, head_bytes), "head size is ", head.head_bytes, ", expected ",
           sizeof(Head));
    }
    if (head.file_bytes != bytes.size()) {
      fail(offsetof(Head, file_bytes), "the file has ", bytes.size(), " bytes, expected ",
           head.file_bytes, bytes.size() < head.file_bytes ? " (cut off?)" : "");
    }
    check_counts();
    const std::string expected = alphabet_text();
    const std::string found(head.alphabet, ::strnlen(head.alphabet, sizeof head.alphabet));
    if (found != expected) {
      fail(offsetof(Head, alphabet), "alphabet is ", found, ", expected ", expected);
    }
  }

  // Before any of them is used for an address.
  void check_counts() const {
    const uint64_t limit = head.file_bytes;
    for (const uint64_t count :
         {head.num_sequences, head.num_tokens, head.header_bytes, head.description_bytes}) {
      if (count > limit) {
        fail(offsetof(Head, num_sequences), "a count is ", count, ", expected at most ", limit,
             " (bytes of the file)");
      }
    }
    const uint64_t end = places_of(head).end;
    if (end != limit) {
      fail(offsetof(Head, num_sequences), "the counts make a file of ", end, " bytes, expected ",
           limit);
    }
    uint64_t sum = 0;
    for (const uint64_t size : head.set_sizes) {
      if (size > head.num_sequences) sum = std::numeric_limits<uint64_t>::max() / 2;
      sum += size;
    }
    if (sum != head.num_sequences) {
      fail(offsetof(Head, set_sizes), "the sets have ", sum, " sequences, expected ",
           head.num_sequences);
    }
  }

  void check_digest() const {
    favor::Sha256 sha;
    sha.update(file.bytes().data(), places.digest);
    const std::string computed = sha.digest();
    const std::string stored(text_at(places.digest, kDigestBytes));
    if (computed != stored) {
      fail(places.digest, "checksum is ", stored, ", expected ", computed,
           " (the file was altered or damaged)");
    }
  }

  std::span<const int64_t> offsets_at(uint64_t at, uint64_t last, const char* what) const {
    const auto* first = reinterpret_cast<const int64_t*>(file.bytes().data() + at);
    const std::span<const int64_t> found{first, head.num_sequences + 1};
    int64_t before = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] < before || (i == 0 && found[i] != 0)) {
        fail(at + 8 * i, what, " offset ", i, " is ", found[i], ", expected ",
             i == 0 ? "" : "at least ", before);
      }
      before = found[i];
    }
    if (found.back() != static_cast<int64_t>(last)) {
      fail(at + 8 * (found.size() - 1), "the last ", what, " offset is ", found.back(),
           ", expected ", last);
    }
    return found;
  }

  void check_tokens() const {
    const auto tokens = file.bytes().subspan(places.tokens, head.num_tokens);
    const auto letters = static_cast<uint8_t>(Tokenizer::protein().num_letters());
    const auto bad =
        std::find_if(tokens.begin(), tokens.end(), [=](uint8_t id) { return id >= letters; });
    if (bad != tokens.end()) {
      fail(places.tokens + static_cast<uint64_t>(bad - tokens.begin()), "token is ", int{*bad},
           ", expected at most ", letters - 1);
    }
  }

  std::string_view text_at(uint64_t at, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(file.bytes().data()) + at, bytes};
  }

  MappedFile file;
  Head head{};
  Places places{};
  std::span<const int64_t> offsets, header_offsets;
};

bool TokenFile::recognises(const std::string& path) {
  return first_bytes(path, kMagic.size()) == kMagic;
}

TokenFile::TokenFile(const std::string& path) : parts_(std::make_shared<const Parts>(path)) {}

int64_t TokenFile::size() const {
  return static_cast<int64_t>(parts_->head.num_sequences);
}

int64_t TokenFile::num_tokens() const {
  return static_cast<int64_t>(parts_->head.num_tokens);
}

int64_t TokenFile::size(TokenSet set) const {
  return static_cast<int64_t>(parts_->head.set_sizes[static_cast<size_t>(set)]);
}

int64_t TokenFile::first(TokenSet set) const {
  int64_t first = 0;
  for (size_t i = 0; i < static_cast<size_t>(set); ++i) {
    first += static_cast<int64_t>(parts_->head.set_sizes[i]);
  }
  return first;
}

SequenceSet TokenFile::set(TokenSet set) const {
  const auto count = static_cast<size_t>(size(set));
  return {parts_, parts_->file.bytes().data() + parts_->places.tokens,
          parts_->offsets.subspan(static_cast<size_t>(first(set)), count + 1)};
}

SequenceSet TokenFile::all() const {
  return {parts_, parts_->file.bytes().data() + parts_->places.tokens, parts_->offsets};
}

std::string_view TokenFile::header(int64_t i) const {
  FAVOR_CHECK(i >= 0 && i < size(), "TokenFile: sequence is ", i, ", expected 0 to ", size() - 1);
  const auto begin = static_cast<uint64_t>(parts_->header_offsets[i]);
  const auto end = static_cast<uint64_t>(parts_->header_offsets[i + 1]);
  return parts_->text_at(parts_->places.headers + begin, end - begin);
}

std::string_view TokenFile::description() const {
  return parts_->text_at(parts_->places.description, parts_->head.description_bytes);
}

void write_token_file(const std::string& path, const TokenFileContent& content) {
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.version = kVersion;
  head.head_bytes = sizeof(Head);
  head.num_sequences = content.order.size();
  head.num_tokens = total_of(content.order, content.offsets);
  head.header_bytes = total_of(content.order, content.header_offsets);
  head.description_bytes = content.description.size();
  for (size_t i = 0; i < kNumTokenSets; ++i) {
    head.set_sizes[i] = static_cast<uint64_t>(content.set_sizes[i]);
  }
  const std::string alphabet = alphabet_text();
  std::memcpy(head.alphabet, alphabet.data(), alphabet.size());
  head.file_bytes = places_of(head).end;

  HashedWriter out(path);
  out.write(&head, sizeof head);
  write_offsets(out, content.order, content.offsets);
  write_offsets(out, content.order, content.header_offsets);
  write_pieces(out, content.order, content.offsets, content.tokens);
  write_pieces(out, content.order, content.header_offsets, content.headers);
  out.write(content.description.data(), content.description.size());
  out.commit();
}

}  // namespace performer
