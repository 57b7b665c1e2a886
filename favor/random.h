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

/// Natural logarithm of a positive, normal double in + - * / alone (the exponent is split off
/// exactly): the same bits everywhere, within 4e-16 relative of the true value.
double portable_log(double x);

/// A stream of random numbers addressed by (seed, stream, substream): key = seed, counter =
/// {block, substream, stream}. Copyable; copies continue from the same place on their own. A stream
/// holds 2^34 words; drawing more throws favor::Error.
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
    uint64_t block = 0;      ///< block of the next word, at most 2^32
    uint32_t used = 0;       ///< words of that block already drawn, 0 to 3
    bool has_spare = false;  ///< normal() computes two values at a time and keeps one
    double spare = 0;
  };
  Position position() const;
  /// Throws favor::Error unless `position` is one that position() could have returned.
  void seek(const Position& position);

 private:
  void fill();

  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> stream_;
  uint32_t substream_;
  Position position_;
  std::array<uint32_t, 4> buffer_{};  // words of block position_.block, valid if used > 0
};

}  // namespace favor

#endif  // FAVOR_RANDOM_H_
