// SPDX-License-Identifier: Apache-2.0
#include "performer/data/utf8.h"

#include <gtest/gtest.h>

namespace performer {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
  for (uint32_t value = 0; value <= 0x10ffff; ++value) {
    if (value >= 0xd800 && value < 0xe000) continue;
    const std::string text = utf8_of(value);
    const CodePoint point = next_code_point(text);
    ASSERT_TRUE(point.valid && point.value == value && point.bytes == text.size()) << value;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const CodePoint part = next_code_point(text.substr(0, cut));
      ASSERT_TRUE(!part.valid && part.bytes == cut) << value;
    }
  }
}

TEST(Utf8, OverlongFormsSurrogatesAndStrayBytesAreInvalid) {
  for (const char* text : {"\x80", "\xff", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf",
                           "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3(", "\xe2\x82"}) {
    EXPECT_FALSE(next_code_point(text).valid) << text;
  }
}

TEST(Utf8, RepairCountsAndKeepsTheRest) {
  std::string text = "na\xc3\xafve \xff\xff caf\xe9!";
  const Utf8Damage damage = repair_utf8(text);
  EXPECT_EQ(damage.count, 3);
  EXPECT_EQ(damage.first, 7U);
  EXPECT_EQ(text, "na\xc3\xafve \xef\xbf\xbd\xef\xbf\xbd caf\xef\xbf\xbd!");
  EXPECT_EQ(repair_utf8(text).count, 0);
}

}  // namespace
}  // namespace performer
