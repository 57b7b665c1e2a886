// SPDX-License-Identifier: Apache-2.0
#include "performer/data/table.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

using favor::message;

struct Closer {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// zlib passes a file that is not gzipped through as it is.
std::string read_content(const std::string& path, const std::string& name) {
  errno = 0;
  const std::unique_ptr<gzFile_s, Closer> file(path == "-" ? gzdopen(::dup(STDIN_FILENO), "rb")
                                                           : gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    throw std::runtime_error(message(name, ": cannot open: ", std::strerror(errno)));
  }
  std::string content;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const int bytes = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (bytes == 0) break;
    if (bytes > 0) content.append(buffer.data(), static_cast<size_t>(bytes));
    if (bytes < 0) {
      int code = 0;
      const char* text = gzerror(file.get(), &code);
      throw std::runtime_error(
          message(name, ": cannot read: ", code == Z_ERRNO ? std::strerror(errno) : text));
    }
  }
  // A gzip file that ends inside a member is reported at the end only.
  int code = 0;
  gzerror(file.get(), &code);
  if (code == Z_BUF_ERROR) throw std::runtime_error(message(name, ": gzip data is cut off"));
  return content;
}

class Parser {
 public:
  Parser(const std::string& name, std::string_view content) : name_(name), content_(content) {
    if (content_.starts_with("\xef\xbb\xbf")) at_ = 3;
  }

  Table parse() {
    Table table;
    TableRow header;
    table.separator = sniff();
    separator_ = table.separator;
    if (!next(header)) throw std::runtime_error(message(name_, ": is empty, expected a header"));
    std::set<std::string> seen;
    for (const std::string& column : header.fields) {
      if (!seen.insert(column).second) fail(header.line, "two columns are called '", column, "'");
    }
    table.columns = std::move(header.fields);
    for (TableRow row; next(row);) table.rows.push_back(std::move(row));
    return table;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(int64_t line, const Args&... args) const {
    throw std::runtime_error(message(name_, ":", line, ": ", args...));
  }

  char sniff() const {
    bool quoted = false;
    for (size_t i = at_; i < content_.size(); ++i) {
      const char c = content_[i];
      if (c == '"') quoted = !quoted;
      if (!quoted && c == '\t') return '\t';
      // Empty lines before the header say nothing.
      if (!quoted && c == '\n' &&
          content_.substr(at_, i - at_).find_first_not_of("\r\n") != std::string_view::npos) {
        break;
      }
    }
    return ',';
  }

  bool ends_line(size_t at) const {
    return at >= content_.size() || content_[at] == '\n' ||
           (content_[at] == '\r' && (at + 1 >= content_.size() || content_[at + 1] == '\n'));
  }

  void skip_line_end() {
    if (at_ < content_.size() && content_[at_] == '\r') ++at_;
    if (at_ < content_.size()) ++at_;
    ++line_;
  }

  bool next(TableRow& row) {
    while (at_ < content_.size() && ends_line(at_)) skip_line_end();
    if (at_ >= content_.size()) return false;
    row = {{}, line_};
    for (;;) {
      row.fields.push_back(field());
      if (ends_line(at_)) break;
      ++at_;  // the separator
    }
    skip_line_end();
    return true;
  }

  std::string field() {
    std::string text;
    if (at_ >= content_.size() || content_[at_] != '"') {
      const size_t begin = at_;
      while (!ends_line(at_) && content_[at_] != separator_) ++at_;
      return std::string(content_.substr(begin, at_ - begin));
    }
    const int64_t opened = line_;
    for (++at_;; ++at_) {
      if (at_ >= content_.size()) fail(opened, "a quote is opened and never closed");
      const char c = content_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        text += c;
      } else if (at_ + 1 < content_.size() && content_[at_ + 1] == '"') {
        text += '"';
        ++at_;
      } else {
        break;
      }
    }
    ++at_;
    if (!ends_line(at_) && content_[at_] != separator_) {
      fail(line_, "text follows a closing quote, expected the separator or the line's end");
    }
    return text;
  }

  const std::string& name_;
  std::string_view content_;
  size_t at_ = 0;
  int64_t line_ = 1;
  char separator_ = ',';
};

}  // namespace

int64_t Table::find(std::string_view column) const {
  const auto found = std::find(columns.begin(), columns.end(), column);
  return found == columns.end() ? -1 : found - columns.begin();
}

Table read_table(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  return parse_table(name, read_content(path, name));
}

Table parse_table(const std::string& name, std::string_view content) {
  return Parser(name, content).parse();
}

std::string table_field(std::string_view field, char separator) {
  const bool blank_end = !field.empty() && (field.front() == ' ' || field.back() == ' ');
  if (!blank_end && field.find_first_of("\"\r\n") == std::string_view::npos &&
      field.find(separator) == std::string_view::npos) {
    return std::string(field);
  }
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string table_line(const std::vector<std::string>& fields, char separator) {
  // An empty line would be passed over when read.
  if (fields.size() == 1 && fields[0].empty()) return "\"\"\n";
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += separator;
    line += table_field(fields[i], separator);
  }
  return line + "\n";
}

}  // namespace performer
