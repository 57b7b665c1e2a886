// SPDX-License-Identifier: Apache-2.0
// Internal: SHA-256 (FIPS 180-4), which identifies matrices and guards snapshots.
#ifndef FAVOR_SHA256_H_
#define FAVOR_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace favor {

/// Takes bytes in any pieces and gives their digest.
class Sha256 {
 public:
  void update(const void* data, size_t bytes);
  /// 64 lower-case hexadecimal digits. Ends the object's use.
  std::string digest();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> hash_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;   ///< bytes waiting in block_
  uint64_t total_ = 0;  ///< bytes taken so far
};

}  // namespace favor

#endif  // FAVOR_SHA256_H_
