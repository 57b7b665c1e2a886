// SPDX-License-Identifier: Apache-2.0
#include "performer/data/vocabulary_file.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "favor/check.h"
#include "performer/data/atomic_file.h"

namespace performer {
namespace {

constexpr std::array<const char*, 4> kSpecial = {"<begin>", "<end>", "<pad>", "<mask>"};

std::string file_in(const std::string& folder) {
  return (std::filesystem::path(folder) / "vocab.txt").string();
}

std::string escaped(std::string_view token) {
  std::string text;
  for (const char c : token) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
      text += code;
    } else {
      text += c;
    }
  }
  return text;
}

// False for an escape that `escaped` does not make.
bool unescape(std::string_view line, std::string& token) {
  token.clear();
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      token += line[i];
      continue;
    }
    const std::string_view rest = line.substr(i + 1);
    if (rest.starts_with("\\") || rest.starts_with("n")) {
      token += rest[0] == 'n' ? '\n' : '\\';
      ++i;
      continue;
    }
    unsigned code = 0;
    if (rest.size() < 3 || rest[0] != 'x' ||
        std::sscanf(std::string(rest.substr(1, 2)).c_str(), "%2x", &code) != 1) {
      return false;
    }
    token += static_cast<char>(code);
    i += 3;
  }
  return true;
}

}  // namespace

void write_vocabulary_file(const std::string& folder, std::vector<std::string> tokens) {
  tokens.insert(tokens.end(), kSpecial.begin(), kSpecial.end());
  std::string text;
  for (const std::string& token : tokens) text += escaped(token) + "\n";
  write_file_atomically(file_in(folder), text);
}

std::vector<std::string> read_vocabulary_file(const std::string& folder) {
  const std::string path = file_in(folder);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(favor::message(path, ": cannot open: ", std::strerror(errno)));
  }
  std::vector<std::string> tokens;
  for (std::string line; std::getline(file, line);) {
    tokens.emplace_back();
    if (!unescape(line, tokens.back())) {
      throw std::runtime_error(favor::message(path, ":", tokens.size(), ": token is '", line,
                                              "', expected \\\\, \\n or \\xNN after a backslash"));
    }
  }
  for (size_t i = 0; i < kSpecial.size(); ++i) {
    const size_t at = tokens.size() - kSpecial.size() + i;
    if (tokens.size() <= kSpecial.size() || tokens[at] != kSpecial[i]) {
      throw std::runtime_error(favor::message(
          path, ": ", tokens.size(),
          " tokens end otherwise, expected <begin>, <end>, <pad> and <mask> as the last lines"));
    }
  }
  tokens.resize(tokens.size() - kSpecial.size());
  return tokens;
}

}  // namespace performer
