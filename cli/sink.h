// SPDX-License-Identifier: Apache-2.0
// Where a command's text goes, piece by piece.
#ifndef PERFORMER_CLI_SINK_H_
#define PERFORMER_CLI_SINK_H_

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "favor/check.h"
#include "performer/data/atomic_file.h"

namespace performer::cli {

/// A file that appears whole, or standard output for "" and "-".
class Sink {
 public:
  explicit Sink(const std::string& path) {
    if (!path.empty() && path != "-") file_ = std::make_unique<AtomicFile>(path);
  }
  void write(const std::string& text) {
    if (file_) {
      file_->write(text.data(), text.size());
    } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      fail();
    }
  }
  /// Whoever reads standard output sees what has been written.
  void flush() {
    if (!file_ && std::fflush(stdout) != 0) fail();
  }
  void commit() {
    if (file_) return file_->commit();
    flush();
  }

 private:
  [[noreturn]] static void fail() {
    throw std::runtime_error(
        favor::message("standard output: cannot be written: ", std::strerror(errno)));
  }

  std::unique_ptr<AtomicFile> file_;
};

}  // namespace performer::cli

#endif  // PERFORMER_CLI_SINK_H_
