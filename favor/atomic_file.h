// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all: written under a temporary name in the same folder, synced,
// renamed. All failures are std::runtime_error naming the file.
#ifndef FAVOR_ATOMIC_FILE_H_
#define FAVOR_ATOMIC_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace favor {

/// A file being written. Without commit() the destructor removes the temporary file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  /// Syncs the file, gives it its name, syncs the folder.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// Replaces the file's content, or creates it, in one step.
void write_file_atomically(const std::string& path, std::string_view content);

/// Makes renames and new names inside `folder` survive a power cut.
void sync_folder(const std::string& folder);

}  // namespace favor

#endif  // FAVOR_ATOMIC_FILE_H_
