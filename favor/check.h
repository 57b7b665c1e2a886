// SPDX-License-Identifier: Apache-2.0
// The one way a wrong argument is reported: FAVOR_CHECK throws favor::Error, whose message reads
// `op: argument is X, expected Y`. FAVOR_DCHECK guards the library's own invariants in debug
// builds.
#ifndef FAVOR_CHECK_H_
#define FAVOR_CHECK_H_

#include <sstream>
#include <stdexcept>
#include <string>

namespace favor {

/// The caller's mistake. Thrown before any work or allocation, so nothing is left half written.
class Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Joins its arguments with operator<< into one message.
template <class... Args>
std::string message(const Args&... args) {
  std::ostringstream stream;
  (stream << ... << args);
  return stream.str();
}

}  // namespace favor

/// Throws favor::Error with the remaining arguments as message unless `condition` holds.
#define FAVOR_CHECK(condition, ...)                        \
  do {                                                     \
    if (!(condition)) {                                    \
      throw ::favor::Error(::favor::message(__VA_ARGS__)); \
    }                                                      \
  } while (false)

#ifdef NDEBUG
#define FAVOR_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define FAVOR_DCHECK(condition)                                                           \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      throw std::logic_error(::favor::message(__FILE__, ":", __LINE__, ": " #condition)); \
    }                                                                                     \
  } while (false)
#endif

#endif  // FAVOR_CHECK_H_
