// SPDX-License-Identifier: Apache-2.0
// Runs random attention problems through every instruction set and holds them against the
// reference, for as long as asked: the parity tests without an end. Prints each failing case with
// the seed that repeats it. Not part of the test suite: `make test-random SECONDS=600`.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

/// "" if the case with this seed is right on every instruction set.
std::string fault_of(uint64_t seed) {
  RandomStream rng(seed, 77);
  test::CaseSizes sizes;
  sizes.lengths = {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 257, 1030};
  sizes.dims = {1, 2, 3, 4, 8, 15, 16, 17, 31, 33, 48, 64, 65, 80, 128};
  sizes.features = {1, 2, 5, 15, 16, 17, 32, 37, 64, 100, 256, 300};
  test::Case c = test::random_case(rng, rng.below(2) == 0, sizes);
  c.seed = seed;
  if (c.H * c.B * (c.L + c.S) * c.M * (c.D + c.E) > 60'000'000) return "";
  const test::Problem problem = test::make_problem(c);
  test::Judge judge(problem);
  bool widened = false;
  std::string fault;
  test::for_each_isa([&](const char* isa) {
    set_num_threads(1 + static_cast<int>(seed % 3));
    const auto results = test::run_kernel(problem);
    std::string verdict = judge.verdict(results);
    if (!verdict.empty() && !widened) {
      judge.widen(problem, 2, 20);
      widened = true;
      verdict = judge.verdict(results);
    }
    if (!verdict.empty()) fault += message("  ", isa, ": ", verdict, "\n");
  });
  return fault.empty() ? "" : message(c.name(), "\n", fault);
}

int sweep(double seconds, uint64_t first_seed) {
  set_poison_scratch(true);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int64_t cases = 0, faults = 0;
  double next_report = 60;
  for (uint64_t seed = first_seed; elapsed() < seconds; ++seed, ++cases) {
    const std::string fault = fault_of(seed);
    if (!fault.empty()) {
      ++faults;
      std::printf("seed %llu: %s", static_cast<unsigned long long>(seed), fault.c_str());
      std::fflush(stdout);
    }
    if (elapsed() > next_report) {
      std::printf("%.0f s, %lld cases\n", elapsed(), static_cast<long long>(cases));
      std::fflush(stdout);
      next_report += 60;
    }
  }
  std::printf("%lld random cases, %lld faults\n", static_cast<long long>(cases),
              static_cast<long long>(faults));
  return faults == 0 ? 0 : 1;
}

}  // namespace
}  // namespace favor

int main(int argc, char** argv) {
  const auto number = [&](int index, const char* otherwise) {
    const char* text = index < argc ? argv[index] : otherwise;
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0)) {
      std::fprintf(stderr, "usage: favor_random_sweep [SECONDS [FIRST_SEED]]\n");
      std::exit(2);
    }
    return value;
  };
  const double seconds = number(1, "60");
  return favor::sweep(seconds, static_cast<uint64_t>(number(2, "1")));
}
