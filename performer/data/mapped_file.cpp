// SPDX-License-Identifier: Apache-2.0
#include "performer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw std::runtime_error(favor::message(path, ": ", what, ": ", std::strerror(error)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path_, "cannot open", errno);
  try {
    map(descriptor);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

MappedFile::MappedFile(int descriptor, const std::string& path) : path_(path) {
  map(descriptor);
}

void MappedFile::map(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path_, "cannot read", errno);
  if (!S_ISREG(status.st_mode))
    fail(path_, "cannot map", S_ISDIR(status.st_mode) ? EISDIR : ENODEV);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) fail(path_, "cannot map", errno);
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

std::string first_bytes(const std::string& path, size_t count) {
  std::string bytes(count, '\0');
  struct stat status {};
  // Reading from a pipe would take the bytes away from whoever reads it next.
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

}  // namespace performer
