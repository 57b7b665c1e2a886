// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pieces.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/utf8.h"
#include "performer/data/vocabulary_file.h"

namespace performer {
namespace {

using favor::message;

// What the library writes for a blank.
constexpr std::string_view kBlank = "\xe2\x96\x81";
// More would only make the training longer.
constexpr int64_t kTrainingBytes = 10000000;
// A longer line would be passed over.
constexpr int64_t kLineBytes = 4096;

std::string reason(const sentencepiece::util::Status& status) {
  std::string text = status.ToString();
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

// Lines of some sections, every `step`-th.
class Lines : public sentencepiece::SentenceIterator {
 public:
  Lines(const std::vector<std::string_view>& sections, int64_t step)
      : sections_(sections), step_(step) {
    find();
  }
  bool done() const override { return done_; }
  void Next() override { find(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void find() {
    while (section_ < sections_.size()) {
      const std::string_view text = sections_[section_];
      if (at_ >= text.size()) {
        ++section_;
        at_ = 0;
        continue;
      }
      const size_t end = std::min(text.find('\n', at_), text.size());
      const std::string_view line = text.substr(at_, end - at_);
      at_ = end + 1;
      if (line.empty() || number_++ % step_ != 0) continue;
      line_ = line.substr(0, kLineBytes);
      // A cut may fall inside a character.
      repair_utf8(line_);
      return;
    }
    done_ = true;
  }

  const std::vector<std::string_view>& sections_;
  int64_t step_;
  size_t section_ = 0, at_ = 0;
  int64_t number_ = 0;
  std::string line_;
  bool done_ = false;
};

class PieceVocabulary : public Vocabulary {
 public:
  PieceVocabulary(std::string model, const std::string& name) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) {
      throw std::runtime_error(message(name, ": is no SentencePiece model (", reason(status), ")"));
    }
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      texts_.push_back(processor_.IsControl(id) ? "" : text_of(id));
    }
  }

  std::string kind() const override { return "pieces"; }
  int64_t num_letters() const override { return std::ssize(texts_); }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    FAVOR_CHECK(status.ok(), "encode: ", reason(status));
    return {ids.begin(), ids.end()};
  }
  // The texts of the pieces one after another: what is decoded piece by piece is the same.
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      check_id(id);
      if (!is_special(id)) text += texts_[static_cast<size_t>(id)];
    }
    return text;
  }
  int64_t num_bytes(int64_t id) const override {
    return is_special(id) ? 0 : std::ssize(texts_[static_cast<size_t>(id)]);
  }
  void save(const std::string& folder) const override {
    std::vector<std::string> names;
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      names.push_back(processor_.IdToPiece(id));
    write_vocabulary_file(folder, std::move(names));
    write_file_atomically((std::filesystem::path(folder) / "vocab.model").string(), model_);
  }

 private:
  std::string text_of(int id) const {
    if (processor_.IsUnknown(id)) return utf8_of(kReplacement);
    std::string piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id))
      return {static_cast<char>(std::stoi(piece.substr(1, 4), nullptr, 16))};
    for (size_t at = 0; (at = piece.find(kBlank, at)) != std::string::npos;) {
      piece.replace(at, kBlank.size(), " ");
    }
    return piece;
  }

  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> texts_;
};

}  // namespace

std::string train_pieces(const std::vector<std::string_view>& sections, int64_t num_pieces) {
  int64_t bytes = 0;
  for (const std::string_view section : sections) bytes += std::ssize(section);
  Lines lines(sections, (bytes + kTrainingBytes - 1) / kTrainingBytes);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "unigram"},
       {"vocab_size", std::to_string(num_pieces)},
       {"normalization_rule_name", "identity"},
       {"add_dummy_prefix", "false"},
       {"remove_extra_whitespaces", "false"},
       // Indentation: a run of blanks may be one piece.
       {"allow_whitespace_only_pieces", "true"},
       {"byte_fallback", "true"},
       {"unk_id", "0"},
       {"bos_id", "-1"},
       {"eos_id", "-1"},
       {"pad_id", "-1"},
       // A fixed number: sums over threads depend on it, the machine's cores must not matter.
       {"num_threads", "4"},
       {"minloglevel", "2"}},
      &lines, &model);
  if (!status.ok()) {
    throw std::runtime_error(
        message("num_pieces is ", num_pieces, ": SentencePiece refuses: ", reason(status)));
  }
  return model;
}

std::shared_ptr<const Vocabulary> piece_vocabulary(std::string model, const std::string& name) {
  return std::make_shared<PieceVocabulary>(std::move(model), name);
}

}  // namespace performer
