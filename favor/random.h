// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011). The bits depend on key and
// counter alone, never on platform, ISA, thread or the number of earlier draws.
#ifndef FAVOR_RANDOM_H_
#define FAVOR_RANDOM_H_

#include <array>
#include <cstdint>

namespace favor {

/// One Philox 4x32-10 block: 128 random bits for a 128-bit counter under a 64-bit key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream of random numbers addressed by (seed, stream, substream). Copyable; copies continue
/// independently from the same place.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t stream, uint32_t substream = 0);

  /// 32 uniform random bits.
  uint32_t bits();
  /// Uniform in [0, 1), 53 random bits.
  double uniform();
  /// Uniform integer in [0, bound), without modulo bias. bound >= 1.
  uint64_t below(uint64_t bound);
  /// Standard normal, computed with + - * / sqrt and the library's own logarithm (polar method), so
  /// that every platform gets the same bits.
  double normal();

  /// Position of the stream, for checkpoints: the state before the next draw.
  struct Position {
    uint64_t block = 0;
    uint32_t used = 0;
    bool has_spare = false;
    double spare = 0;
  };
  Position position() const;
  void seek(const Position& position);

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> stream_;
  uint64_t block_ = 0;
  uint32_t used_ = 4;
  std::array<uint32_t, 4> buffer_{};
  bool has_spare_ = false;
  double spare_ = 0;
};

}  // namespace favor

#endif  // FAVOR_RANDOM_H_
