// SPDX-License-Identifier: Apache-2.0
// The task `text`: files of text as bytes, characters or SentencePiece pieces.
#include <filesystem>
#include <utility>

#include "favor/check.h"
#include "performer/data/byte_source.h"
#include "performer/data/pieces.h"
#include "performer/data/text.h"
#include "performer/train/task_list.h"

namespace performer {
namespace {

using favor::message;

// The bytes of the pieces to fall back on are among them.
constexpr int64_t kFewestPieces = 300;

std::shared_ptr<const Vocabulary> make_vocabulary(const DataConfig& data,
                                                  const std::vector<std::string_view>& train) {
  if (data.vocabulary == TextUnit::kBytes) return byte_vocabulary();
  if (data.vocabulary == TextUnit::kCharacters) return character_vocabulary(train);
  if (data.pieces_model.empty()) {
    return piece_vocabulary(train_pieces(train, data.num_pieces), "the trained pieces");
  }
  return piece_vocabulary(read_bytes(data.pieces_model), data.pieces_model);
}

// In which units the loss of `set` is known: bits per byte and per character go by what each token
// stands for, word perplexity by the number of tokens per word of the whole set.
std::vector<Unit> units_of(const TextSet& set, const Vocabulary& vocabulary, TextUnit unit) {
  Unit bytes{"bits_per_byte", true, {}, 0};
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    bytes.per_target.push_back(static_cast<double>(vocabulary.num_bytes(id)));
  }
  std::vector<Unit> units = {bytes};
  if (unit == TextUnit::kCharacters) {
    Unit characters{"bits_per_character", true, {}, 0};
    for (int64_t id = 0; id < vocabulary.size(); ++id) {
      characters.per_target.push_back(vocabulary.is_special(id) ? 0 : 1);
    }
    units.push_back(std::move(characters));
  }
  if (unit == TextUnit::kPieces && set.stream().words > 0) {
    units.push_back(
        {"word_perplexity", false, {}, double(set.stream().words) / double(set.num_targets())});
  }
  return units;
}

std::unique_ptr<TaskData> open_text(const TrainConfig& config,
                                    std::shared_ptr<const Vocabulary> vocabulary) {
  std::vector<TextFile> files = read_text_files(config.data.data);
  ExampleTask task;
  if (config.data.vocabulary != TextUnit::kBytes) task.source = repair(files).summary();
  int64_t bytes = 0;
  for (const TextFile& file : files) bytes += std::ssize(file.text);
  const TextSplits splits = split_text(files, config.split_options());
  FAVOR_CHECK(!splits.sections[0].empty(), config.data.data, ": ", bytes,
              " bytes of text all fall to validation and test, expected more text or another "
              "split_seed");
  if (!vocabulary) vocabulary = make_vocabulary(config.data, splits.sections[0]);
  const TextUnit unit = config.data.vocabulary;
  FAVOR_CHECK(vocabulary->kind() == to_string(unit), "vocabulary is ", to_string(unit),
              ", expected ", vocabulary->kind(), " (that of the model)");
  task.vocabulary = vocabulary;
  std::string sides;
  std::shared_ptr<const ExampleSet>* const sets[] = {&task.train, &task.valid, &task.test};
  for (size_t side = 0; side < 3; ++side) {
    TokenStream stream = encode_text(splits.sections[side], *vocabulary);
    if (stream.tokens.empty()) continue;
    if (side == 0 && unit == TextUnit::kPieces && stream.words > 0) {
      sides = message(", ", double(stream.tokens.size()) / double(stream.words),
                      " pieces per word of the training set");
    }
    *sets[side] = std::make_shared<TextSet>(std::move(stream), vocabulary, config.batch_options());
  }
  task.source = message(files.size(), files.size() == 1 ? " file, " : " files, ", bytes,
                        " bytes of text; vocabulary of ", vocabulary->num_letters(), " ",
                        vocabulary->kind(), sides, task.source.empty() ? "" : "; ", task.source);
  if (config.model.causal) {
    task.units = [vocabulary, unit](const ExampleSet& set) {
      return units_of(dynamic_cast<const TextSet&>(set), *vocabulary, unit);
    };
  }
  return open_examples(std::move(task), config);
}

}  // namespace

Task text_task() {
  Task task;
  task.name = "text";
  task.help = "language model of text files: bytes, characters or pieces";
  task.input = "a text file or a folder of them";
  task.set_defaults = [](TrainConfig&) {};
  // What estimates of memory go by until the data is read.
  task.settle = [](TrainConfig& config) {
    const bool pieces = config.data.vocabulary == TextUnit::kPieces;
    config.model.vocab_size = pieces ? config.data.num_pieces + 4 : byte_vocabulary()->size();
  };
  task.check = [](const TrainConfig& config) {
    FAVOR_CHECK(config.data.num_pieces >= kFewestPieces && config.data.num_pieces <= 65000,
                "num_pieces is ", config.data.num_pieces, ", expected ", kFewestPieces,
                " to 65000");
    FAVOR_CHECK(config.data.pieces_model.empty() || config.data.vocabulary == TextUnit::kPieces,
                "pieces_model is ", config.data.pieces_model, ", expected none with vocabulary ",
                to_string(config.data.vocabulary));
  };
  task.open = open_text;
  return task;
}

}  // namespace performer
