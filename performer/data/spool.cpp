// SPDX-License-Identifier: Apache-2.0
#include "performer/data/spool.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

Spool::Spool(const std::string& path) : path_(path) {
  std::string pattern = path + ".spool-XXXXXX";
  descriptor_ = ::mkstemp(pattern.data());
  if (descriptor_ < 0) {
    throw std::runtime_error(
        favor::message(path_, ": cannot create a file beside it: ", std::strerror(errno)));
  }
  // Without a name it cannot be left behind.
  ::unlink(pattern.c_str());
  buffer_.reserve(kBufferBytes);
}

Spool::~Spool() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Spool::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  offsets_.push_back(offsets_.back() + static_cast<int64_t>(bytes));
  buffer_.insert(buffer_.end(), from, from + bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void Spool::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t written = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw std::runtime_error(
          favor::message(path_, ": cannot write a file beside it: ", std::strerror(errno)));
    }
    done += static_cast<size_t>(written);
  }
  buffer_.clear();
}

std::span<const uint8_t> Spool::map() {
  flush();
  if (!mapped_) mapped_ = std::make_unique<MappedFile>(descriptor_, path_);
  return mapped_->bytes();
}

}  // namespace performer
