// SPDX-License-Identifier: Apache-2.0
#include "favor/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "favor/check.h"
#include "favor/testing.h"

namespace favor {
namespace {

TEST(Isa, AvailableOnesAreCompiled) {
  const std::vector<std::string> compiled = compiled_isas();
  ASSERT_FALSE(available_isas().empty());
  for (const std::string& name : available_isas()) {
    EXPECT_NE(std::find(compiled.begin(), compiled.end(), name), compiled.end()) << name;
  }
}

TEST(Isa, CurrentOneFollowsTheTestLoop) {
  test::for_each_isa([](const char* name) {
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
    EXPECT_EQ(current_isa(), lower);
  });
}

#if defined(__x86_64__) && defined(__linux__)
TEST(Isa, Bfloat16ProductsAreThoseOfTheKernel) {
  std::ostringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  ASSERT_NE(text.str().find("flags"), std::string::npos);
  EXPECT_EQ(has_bfloat16_products(), text.str().find(" avx512_bf16") != std::string::npos);
}
#endif

// The variable is read once per process, so each value gets a process of its own.
TEST(IsaDeathTest, VariableLimitsTheChoice) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string lowest = available_isas().back();
  EXPECT_EXIT(
      {
        setenv("FAVOR_ISA", lowest.c_str(), 1);
        apply_isa_limit();
        std::_Exit(current_isa() == lowest && available_isas().size() == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(IsaDeathTest, UnknownNameIsRefusedWithTheKnownOnes) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("FAVOR_ISA", "avx9000", 1);
        try {
          current_isa();
        } catch (const Error& error) {
          const std::string text = error.what();
          const bool named = text.find("FAVOR_ISA is 'avx9000', expected ") == 0 &&
                             text.find(available_isas().front()) != std::string::npos;
          std::_Exit(named ? 3 : 1);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace favor
