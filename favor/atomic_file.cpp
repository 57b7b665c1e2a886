// SPDX-License-Identifier: Apache-2.0
#include "favor/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "favor/check.h"

namespace favor {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temporary_(message(path, ".tmp-", ::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("cannot create the file");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) const {
  throw std::runtime_error(message(path_, ": ", what, ": ", std::strerror(errno)));
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, from, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("cannot write");
    }
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("cannot sync");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename into place");
  // From here on the temporary name is gone, so the destructor must not remove anything.
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) fail("cannot close");
  sync_folder(folder_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) {
    // Some file systems cannot sync a folder and say EINVAL; there the rename is all one can do.
    if (::fsync(descriptor) != 0 && errno != EINVAL) error = errno;
    ::close(descriptor);
  }
  if (error != 0) {
    throw std::runtime_error(message(folder, ": cannot sync the folder: ", std::strerror(error)));
  }
}

}  // namespace favor
