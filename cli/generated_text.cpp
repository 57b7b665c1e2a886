// SPDX-License-Identifier: Apache-2.0
#include "cli/generated_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/infer_options.h"
#include "favor/check.h"

namespace performer::cli {
namespace {

constexpr size_t kColumns = 60;
constexpr size_t kPiece = 4096;

std::string fasta_lines(const std::string& letters) {
  std::string text;
  for (size_t at = 0; at < letters.size(); at += kColumns) {
    text += letters.substr(at, kColumns) + "\n";
  }
  return text;
}

std::string begin_field(const GeneratedText& text) {
  return text.begin == 1 ? "" : favor::message(" begin=", text.begin);
}

nlohmann::ordered_json head(const GeneratedText& text) {
  nlohmann::ordered_json object = {{"name", text.name}};
  if (text.begin != 1) object["begin"] = text.begin;
  return object;
}

}  // namespace

GeneratedWriter::GeneratedWriter(Sink& sink, const TextOptions& options,
                                 std::vector<GeneratedText> sequences, bool pieces)
    : sink_(sink),
      options_(options),
      sequences_(std::move(sequences)),
      complete_(sequences_.size()),
      pieces_(pieces) {
  FAVOR_CHECK(!pieces || sequences_.size() == 1, "GeneratedWriter: sequences holds ",
              sequences_.size(), ", expected 1 to write in pieces");
}

void GeneratedWriter::add(int64_t sequence, char letter, double log_prob) {
  GeneratedText& text = sequences_[sequence];
  text.letters += letter;
  if (options_.log_probs) text.log_probs.push_back(log_prob);
  sum_ += log_prob;
  ++drawn_;
  if (pieces_ && text.letters.size() >= kPiece) write_piece(/*last=*/false);
}

void GeneratedWriter::end(int64_t sequence, double log_prob) {
  sequences_[sequence].end = log_prob;
  sum_ += log_prob;
  ++drawn_;
}

void GeneratedWriter::complete(int64_t sequence) {
  complete_[sequence] = true;
  if (pieces_) return write_piece(/*last=*/true);
  for (; next_ < sequences_.size() && complete_[next_]; ++next_) {
    write_whole(sequences_[next_]);
    sequences_[next_] = GeneratedText();
  }
  sink_.flush();
}

double GeneratedWriter::mean_log_prob() const {
  return sum_ / static_cast<double>(std::max<int64_t>(drawn_, 1));
}

void GeneratedWriter::write_whole(const GeneratedText& text) {
  double sum = text.end.value_or(0);
  for (const double value : text.log_probs) sum += value;
  const auto count = static_cast<double>(text.log_probs.size() + (text.end ? 1 : 0));
  if (!options_.json) {
    std::string header =
        favor::message(">", text.name, begin_field(text), " length=", text.letters.size(),
                       text.end ? " end=stop" : " end=max_length");
    if (options_.log_probs && count > 0) header += " mean_log_prob=" + number_text(sum / count);
    return sink_.write(header + "\n" + fasta_lines(text.letters));
  }
  nlohmann::ordered_json object = head(text);
  object["sequence"] = text.letters;
  object["ended"] = text.end.has_value();
  if (options_.log_probs) {
    object["prompt_length"] = text.prompt_letters;
    object["log_probs"] = text.log_probs;
    if (text.end) object["end_log_prob"] = *text.end;
    if (count > 0) object["mean_log_prob"] = sum / count;
  }
  sink_.write(object.dump() + "\n");
}

void GeneratedWriter::write_piece(bool last) {
  GeneratedText& text = sequences_[0];
  if (!options_.json) {
    if (!headed_) sink_.write(">" + text.name + begin_field(text) + "\n");
    headed_ = true;
    // Whole lines; the rest of the last one waits.
    const size_t count = last ? text.letters.size() : text.letters.size() / kColumns * kColumns;
    sink_.write(fasta_lines(text.letters.substr(0, count)));
    text.letters.erase(0, count);
    text.log_probs.clear();
    text.prompt_letters = 0;
    return sink_.flush();
  }
  nlohmann::ordered_json object = {{"name", text.name}, {"begin", text.begin}};
  object["sequence"] = text.letters;
  if (options_.log_probs) {
    object["prompt_length"] = text.prompt_letters;
    object["log_probs"] = text.log_probs;
  }
  if (last) {
    object["ended"] = text.end.has_value();
    if (options_.log_probs && text.end) object["end_log_prob"] = *text.end;
    if (options_.log_probs && drawn_ > 0) object["mean_log_prob"] = mean_log_prob();
  }
  sink_.write(object.dump() + "\n");
  sink_.flush();
  text.begin += std::ssize(text.letters);
  text.prompt_letters = 0;
  text.letters.clear();
  text.log_probs.clear();
}

}  // namespace performer::cli
