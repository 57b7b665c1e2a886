// SPDX-License-Identifier: Apache-2.0
// Tables as CSV or TSV with a header line, quoted as RFC 4180 says: reading, gzipped or not, and
// writing. Fields are bytes; nothing in them is changed.
#ifndef PERFORMER_DATA_TABLE_H_
#define PERFORMER_DATA_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace performer {

struct TableRow {
  std::vector<std::string> fields;  ///< as many as the file has, header or not
  int64_t line = 0;                 ///< line it starts on, from 1
};

struct Table {
  char separator = ',';
  std::vector<std::string> columns;
  std::vector<TableRow> rows;

  /// Index of the column of this name, or -1.
  int64_t find(std::string_view column) const;
};

/// Reads a whole table; `-` is standard input. The separator is a tab where the header line holds
/// one outside quotes, else a comma. Lines end with LF or CRLF, a byte order mark and empty lines
/// are passed over. Rows may have fewer or more fields than the header: the caller judges them.
/// Throws std::runtime_error reading `file:line: ...`: unreadable or empty file, an unclosed quote,
/// text after a closing quote, two columns of one name.
Table read_table(const std::string& path);

/// As read_table, from memory; errors call it `name`.
Table parse_table(const std::string& name, std::string_view content);

/// A field as it stands in a file: quoted where it holds the separator, a quote, a line break, or
/// blanks at an end.
std::string table_field(std::string_view field, char separator);

/// A line with its LF. A row of one empty field is written as "".
std::string table_line(const std::vector<std::string>& fields, char separator);

}  // namespace performer

#endif  // PERFORMER_DATA_TABLE_H_
