// SPDX-License-Identifier: Apache-2.0
// Pickles of Python, as far as dictionaries of arrays, lists and numbers need them. Nothing is ever
// called: what a pickle asks for beyond numpy's arrays is refused by name.
#ifndef PERFORMER_DATA_PICKLE_H_
#define PERFORMER_DATA_PICKLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/mapped_file.h"
#include "performer/data/npy.h"

namespace performer {

/// A value of a pickle.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,
    kName,
    kType,
    kArray
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;    ///< of kBool and kInteger
  std::string_view text;  ///< of kText, kBytes (both bytes of the file or of `memory`), kName
  std::vector<PickleValue*> items;            ///< of a dictionary keys and values in turn
  std::string type;                           ///< of kType and kArray, as numpy writes it: |u1
  std::vector<int64_t> shape;                 ///< of kArray, whose bytes are `text`
  std::shared_ptr<const std::string> memory;  ///< bytes that do not stand in the file

  /// The value of a dictionary behind the text or bytes `key`; null if it is not there.
  const PickleValue* find(std::string_view key) const;
};

/// All values of a pickle, and the one that it is.
struct Pickle {
  std::deque<PickleValue> values;
  PickleValue* root = nullptr;
};

/// The value of a file of protocol 2 to 4, without what later protocols keep elsewhere. Numbers of
/// arrays stay in the file where the pickle has them as bytes (Python 2, protocol 3 and 4) and are
/// held in memory where it has them as text (protocol 2 of Python 3). Memory: some 100 bytes per
/// value otherwise. Throws std::runtime_error `file: byte N: got, expected`.
Pickle read_pickle(const std::shared_ptr<const MappedFile>& file);

/// An array of a pickle, owned by the file or its memory. `place` names it. Throws
/// std::runtime_error for what is none.
NpyArray array_of(const PickleValue& value, const std::shared_ptr<const MappedFile>& file,
                  const std::string& place);

}  // namespace performer

#endif  // PERFORMER_DATA_PICKLE_H_
