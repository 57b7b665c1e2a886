// SPDX-License-Identifier: Apache-2.0
// The choice of an instruction set, on top of Highway's dispatch.
#include "favor/isa.h"

#include <hwy/highway.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "favor/check.h"

namespace favor {
namespace {

std::string lower_name(int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// In Highway a lower bit is a better target.
std::vector<std::string> names_of(int64_t targets) {
  std::vector<std::string> names;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((targets & target) != 0) {
      names.push_back(lower_name(target));
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " | ") + word;
  }
  return text;
}

bool limit_from_environment() {
  const char* wanted = std::getenv("FAVOR_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return true;
  }
  const int64_t available = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((available & target) != 0 && lower_name(target) == wanted) {
      hwy::DisableTargets(target - 1);
      return true;
    }
  }
  throw Error(message("FAVOR_ISA is '", wanted, "', expected ", joined(names_of(available)),
                      " (compiled and supported by this CPU)"));
}

}  // namespace

std::vector<std::string> compiled_isas() {
  return names_of(HWY_TARGETS);
}

std::vector<std::string> available_isas() {
  return names_of(hwy::SupportedTargets() & HWY_TARGETS);
}

bool has_bfloat16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kBfloat16 = 1UL << 14;  // HWCAP2_BF16, which old headers lack
  return (getauxval(AT_HWCAP2) & kBfloat16) != 0;
#else
  return false;
#endif
}

void apply_isa_limit() {
  static const bool applied = limit_from_environment();
  static_cast<void>(applied);
}

std::string current_isa() {
  apply_isa_limit();
  return available_isas().front();
}

}  // namespace favor
