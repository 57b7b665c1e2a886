// SPDX-License-Identifier: Apache-2.0
// vocab.txt: one token per line in id order, the four special ones last.
#ifndef PERFORMER_DATA_VOCABULARY_FILE_H_
#define PERFORMER_DATA_VOCABULARY_FILE_H_

#include <string>
#include <vector>

namespace performer {

/// Writes <folder>/vocab.txt with the tokens and `<begin>`, `<end>`, `<pad>`, `<mask>`.
/// Backslashes, line ends and control characters are escaped as \\, \n, \xNN.
void write_vocabulary_file(const std::string& folder, std::vector<std::string> tokens);

/// The tokens before the special ones. Throws std::runtime_error naming file, line, got, expected.
std::vector<std::string> read_vocabulary_file(const std::string& folder);

}  // namespace performer

#endif  // PERFORMER_DATA_VOCABULARY_FILE_H_
