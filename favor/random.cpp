// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 and the distributions drawn from it. Compiled without contraction of a * b + c, so
// that normal() gives the same bits on every platform.
#include "favor/random.h"

#include <cmath>

#include "favor/check.h"

namespace favor {
namespace {

struct Product {
  uint32_t high, low;
};

Product multiply(uint32_t a, uint32_t b) {
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

constexpr uint64_t kBlocks = uint64_t{1} << 32;

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const Product p = multiply(0xD2511F53u, counter[0]);
    const Product q = multiply(0xCD9E8D57u, counter[2]);
    counter = {q.high ^ counter[1] ^ key[0], q.low, p.high ^ counter[3] ^ key[1], p.low};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  // m in [sqrt(1/2), sqrt(2)), so that |t| <= 0.172 below and log(1) is exactly 0.
  if (m < 0.70710678118654752) {
    m += m;
    --exponent;
  }
  // log(m) = 2 artanh(t) = 2 (t + t^3/3 + t^5/5 + ...); the first term left out is below 1e-19.
  const double t = (m - 1) / (m + 1);
  const double t2 = t * t;
  double tail = 0;
  for (int k = 11; k >= 1; --k) tail = t2 * (tail + 1.0 / (2 * k + 1));
  // log(2) in two parts: exponent * kLog2High is exact.
  constexpr double kLog2High = 0x1.62e42fee00000p-1;
  constexpr double kLog2Low = 0x1.a39ef35793c76p-33;
  const double low = exponent * kLog2Low + 2 * t * tail;
  return exponent * kLog2High + (2 * t + low);
}

RandomStream::RandomStream(uint64_t seed, uint64_t stream, uint32_t substream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_{static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      substream_(substream) {}

void RandomStream::fill() {
  buffer_ =
      philox({static_cast<uint32_t>(position_.block), substream_, stream_[0], stream_[1]}, key_);
}

uint32_t RandomStream::bits() {
  if (position_.used == 0) {
    FAVOR_CHECK(position_.block < kBlocks,
                "RandomStream: 2^34 words have been drawn, expected at most that many from one "
                "stream (take another substream)");
    fill();
  }
  const uint32_t word = buffer_[position_.used];
  if (++position_.used == buffer_.size()) {
    position_.used = 0;
    ++position_.block;
  }
  return word;
}

double RandomStream::uniform() {
  const uint64_t high = bits() >> 5;  // 27 bits
  const uint64_t low = bits() >> 6;   // 26 bits
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

uint64_t RandomStream::below(uint64_t bound) {
  FAVOR_CHECK(bound >= 1, "RandomStream::below: bound is 0, expected at least 1");
  const uint64_t rejected = (0 - bound) % bound;  // 2^64 mod bound: the rest divides evenly
  while (true) {
    const uint64_t high = bits();
    const uint64_t word = (high << 32) | bits();
    if (word >= rejected) return word % bound;
  }
}

double RandomStream::normal() {
  if (position_.has_spare) {
    position_.has_spare = false;
    return position_.spare;
  }
  while (true) {
    const double x = 2 * uniform() - 1;
    const double y = 2 * uniform() - 1;
    const double s = x * x + y * y;
    if (s >= 1 || s == 0) continue;
    const double factor = std::sqrt(-2 * portable_log(s) / s);
    position_.has_spare = true;
    position_.spare = y * factor;
    return x * factor;
  }
}

RandomStream::Position RandomStream::position() const {
  return position_;
}

void RandomStream::seek(const Position& position) {
  FAVOR_CHECK(position.used < buffer_.size(), "RandomStream::seek: used is ", position.used,
              ", expected 0 to 3");
  FAVOR_CHECK(position.block < kBlocks || (position.block == kBlocks && position.used == 0),
              "RandomStream::seek: block is ", position.block, ", expected less than 2^32");
  position_ = position;
  if (position_.used > 0) fill();
}

}  // namespace favor
