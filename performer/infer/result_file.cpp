// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/result_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "favor/check.h"

namespace performer {

ResultFile::ResultFile(const std::string& path, int64_t bytes, bool create)
    : path_(path), bytes_(bytes) {
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0);
  descriptor_ = ::open(path.c_str(), flags, 0666);
  if (descriptor_ < 0) fail(create ? "cannot be written" : "cannot be opened");
  try {
    if (create && ::ftruncate(descriptor_, bytes) != 0) fail("cannot be written");
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail("cannot be read");
    if (status.st_size != bytes) {
      throw std::runtime_error(
          favor::message(path, ": has ", status.st_size, " bytes, expected ", bytes));
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

ResultFile::~ResultFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<size_t>(bytes_));
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ResultFile::write(int64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot be written");
    from += written;
    offset += written;
    bytes -= static_cast<size_t>(written);
  }
}

void ResultFile::sync() {
  if (::fdatasync(descriptor_) != 0) fail("cannot be written");
}

const char* ResultFile::map() {
  if (mapped_ == nullptr && bytes_ > 0) {
    // Shared: pages are the file's own and count as no allocation.
    void* mapped =
        ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) fail("cannot be mapped into memory");
    mapped_ = static_cast<char*>(mapped);
  }
  return mapped_;
}

void ResultFile::fail(const char* what) const {
  const int error = errno;
  throw std::runtime_error(favor::message(path_, ": ", what, ": ", std::strerror(error)));
}

}  // namespace performer
