// SPDX-License-Identifier: Apache-2.0
#include "performer/data/table.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "performer/data/testing.h"

namespace performer {
namespace {

using Fields = std::vector<std::string>;

TEST(Table, ReadsQuotesSeparatorsAndLineEnds) {
  const Table table =
      parse_table("t",
                  "\xef\xbb\xbf"
                  "a,\"b,c\",d\r\n1,\"say \"\"hi\"\"\",\r\n\r\n\"two\nlines\",,x\n \"q,2,3");
  EXPECT_EQ(table.separator, ',');
  EXPECT_EQ(table.columns, (Fields{"a", "b,c", "d"}));
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].fields, (Fields{"1", "say \"hi\"", ""}));
  EXPECT_EQ(table.rows[0].line, 2);
  EXPECT_EQ(table.rows[1].fields, (Fields{"two\nlines", "", "x"}));
  EXPECT_EQ(table.rows[1].line, 4);
  // A quote inside an unquoted field is a character like any other.
  EXPECT_EQ(table.rows[2].fields, (Fields{" \"q", "2", "3"}));
  EXPECT_EQ(table.rows[2].line, 6);
  EXPECT_EQ(table.find("d"), 2);
  EXPECT_EQ(table.find("e"), -1);
}

TEST(Table, SeparatorIsATabWhereTheHeaderHoldsOne) {
  const Table table = parse_table("t", "\n\"a\tx\"\tc\n1,2\t3\n");
  EXPECT_EQ(table.separator, '\t');
  EXPECT_EQ(table.columns, (Fields{"a\tx", "c"}));
  EXPECT_EQ(table.rows.at(0).fields, (Fields{"1,2", "3"}));
  EXPECT_EQ(parse_table("t", "\"a\tx\",b\n1\t,2\n").separator, ',');
}

TEST(Table, KeepsRowsOfTheWrongWidth) {
  const Table table = parse_table("t", "a,b\n1\n1,2,3\n");
  EXPECT_EQ(table.rows[0].fields, (Fields{"1"}));
  EXPECT_EQ(table.rows[1].fields, (Fields{"1", "2", "3"}));
}

TEST(Table, WhatIsWrittenReadsBack) {
  for (const char separator : {',', '\t'}) {
    const std::vector<Fields> rows = {
        {"a", "b"}, {"x,y", "p\tq"}, {"\"", "line\r\nbreak"}, {"", " edge "}, {"\xce\xb1", "'"}};
    std::string text;
    for (const Fields& fields : rows) text += table_line(fields, separator);
    const Table table = parse_table("t", text);
    // Without a tab in the header a tab-separated file cannot be told; here there is one.
    ASSERT_EQ(table.separator, separator);
    EXPECT_EQ(table.columns, rows[0]);
    ASSERT_EQ(table.rows.size(), rows.size() - 1);
    for (size_t i = 1; i < rows.size(); ++i) EXPECT_EQ(table.rows[i - 1].fields, rows[i]) << i;
  }
  const Table one = parse_table("t", table_line({"a"}, ',') + table_line({""}, ','));
  ASSERT_EQ(one.rows.size(), 1u);
  EXPECT_EQ(one.rows[0].fields, (Fields{""}));
}

TEST(Table, ReadsGzip) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.csv.gz");
  gzFile zipped = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(zipped, "a,b\n1,2\n", 8), 8);
  ASSERT_EQ(gzclose(zipped), Z_OK);
  EXPECT_EQ(read_table(path).rows.at(0).fields, (Fields{"1", "2"}));
  const std::string whole = read_whole(path);
  const std::string cut = folder.write("cut.csv.gz", whole.substr(0, whole.size() - 9));
  EXPECT_EQ(message_of<std::runtime_error>([&] { read_table(cut); }),
            cut + ": gzip data is cut off");
}

TEST(Table, SaysWhatIsWrongAndWhere) {
  const auto text = [](const std::string& content) {
    return message_of<std::runtime_error>([&] { parse_table("f.csv", content); });
  };
  EXPECT_EQ(text(""), "f.csv: is empty, expected a header");
  EXPECT_EQ(text("\n\n"), "f.csv: is empty, expected a header");
  EXPECT_EQ(text("a,a\n"), "f.csv:1: two columns are called 'a'");
  EXPECT_EQ(text("a,b\n1,2\n\"x,3\n"), "f.csv:3: a quote is opened and never closed");
  EXPECT_EQ(text("a,b\n\"x\"y,3\n"),
            "f.csv:2: text follows a closing quote, expected the separator or the line's end");
  EXPECT_EQ(message_of<std::runtime_error>([] { read_table("/nowhere/t.csv"); }),
            "/nowhere/t.csv: cannot open: No such file or directory");
}

}  // namespace
}  // namespace performer
