// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pickle.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/utf8.h"

namespace performer {
namespace {

using favor::message;
using Kind = PickleValue::Kind;
using Value = PickleValue*;

// What arrays are made of. Names are kept, never looked up.
constexpr std::string_view kArrayMaker = "_reconstruct", kArray = "ndarray", kType = "dtype",
                           kEncode = "encode";
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kNames = {{
    {"numpy.core.multiarray", kArrayMaker},
    {"numpy._core.multiarray", kArrayMaker},
    {"numpy", kArray},
    {"numpy", kType},
    {"_codecs", kEncode},
    {"numpy.core", kArray},
    {"numpy._core", kArray},
}};

const char* word_of(Kind kind) {
  constexpr const char* kWords[] = {"None",   "a truth value", "a number", "a text",
                                    "bytes",  "a tuple",       "a list",   "a dictionary",
                                    "a name", "a type",        "an array"};
  return kWords[static_cast<size_t>(kind)];
}

// Names of what a pickle may hold and this reader does not take.
const char* name_of_opcode(uint8_t code) {
  // clang-format off
  constexpr std::pair<uint8_t, const char*> kOthers[] = {
      {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'G', "BINFLOAT"},
      {'I', "INT"}, {'L', "LONG"}, {'P', "PERSID"}, {'Q', "BINPERSID"}, {'S', "STRING"},
      {'V', "UNICODE"}, {'d', "DICT"}, {'g', "GET"}, {'i', "INST"}, {'l', "LIST"}, {'o', "OBJ"},
      {'p', "PUT"}, {0x81, "NEWOBJ"}, {0x82, "EXT1"}, {0x83, "EXT2"}, {0x84, "EXT4"},
      {0x8b, "LONG4"}, {0x8f, "EMPTY_SET"}, {0x90, "ADDITEMS"}, {0x91, "FROZENSET"},
      {0x92, "NEWOBJ_EX"}, {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};
  // clang-format on
  for (const auto& [other, name] : kOthers) {
    if (other == code) return name;
  }
  return "unknown";
}

class Reader {
 public:
  explicit Reader(const MappedFile& file) : file_(file), bytes_(file.bytes()) {}

  Pickle run() {
    if (bytes_.size() < 2 || bytes_[0] != 0x80) {
      fail("is no pickle of protocol 2 or later, expected one that begins with 0x80");
    }
    for (;;) {
      start_ = at_;
      const uint8_t code = static_cast<uint8_t>(number(1));
      if (code == '.') break;
      step(code);
    }
    pickle_.root = pop();
    if (!stack_.empty()) fail("more than one value is left, expected one");
    if (at_ != bytes_.size()) fail(message(bytes_.size() - at_, " bytes follow, expected none"));
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(message(file_.path(), ": byte ", start_, ": ", what));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail(message("the file ends, expected ", count, " more bytes"));
    }
    const auto* first = reinterpret_cast<const char*>(bytes_.data()) + at_;
    at_ += count;
    return {first, static_cast<size_t>(count)};
  }

  // Little-endian.
  uint64_t number(int count) {
    const std::string_view text = take(static_cast<uint64_t>(count));
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; --i) {
      value = value << 8 | static_cast<unsigned char>(text[static_cast<size_t>(i)]);
    }
    return value;
  }

  std::string_view line() {
    const size_t begin = at_;
    while (at_ < bytes_.size() && bytes_[at_] != '\n') ++at_;
    if (at_ == bytes_.size()) fail("the file ends within a name, expected the end of its line");
    ++at_;
    return {reinterpret_cast<const char*>(bytes_.data()) + begin, at_ - 1 - begin};
  }

  Value make(Kind kind) {
    pickle_.values.emplace_back().kind = kind;
    return &pickle_.values.back();
  }
  void push(Value value) { stack_.push_back(value); }
  void push_integer(Kind kind, int64_t integer) {
    push(make(kind));
    stack_.back()->integer = integer;
  }
  void push_text(Kind kind, std::string_view text) {
    push(make(kind));
    stack_.back()->text = text;
  }

  // A mark is a null pointer.
  Value pop() {
    if (stack_.empty() || stack_.back() == nullptr) fail("nothing stands there, expected a value");
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top(Kind kind) {
    if (stack_.empty() || stack_.back() == nullptr || stack_.back()->kind != kind) {
      fail(message("the value before is ",
                   stack_.empty() || !stack_.back() ? "missing" : word_of(stack_.back()->kind),
                   ", expected ", word_of(kind)));
    }
    return *stack_.back();
  }
  std::vector<Value> pop_to_mark() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), static_cast<Value>(nullptr));
    if (mark == stack_.rend()) fail("no mark stands before, expected one");
    std::vector<Value> values(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return values;
  }

  void tuple(std::vector<Value> values) {
    Value value = make(Kind::kTuple);
    value->items = std::move(values);
    push(value);
  }
  void tuple_of(size_t count) {
    std::vector<Value> values(count);
    for (size_t i = count; i > 0; --i) values[i - 1] = pop();
    tuple(std::move(values));
  }

  void extend(Kind kind, const std::vector<Value>& values) {
    if (kind == Kind::kDict && values.size() % 2 != 0) fail("a key has no value, expected one");
    PickleValue& target = top(kind);
    target.items.insert(target.items.end(), values.begin(), values.end());
  }

  void memoize(uint64_t place) {
    if (stack_.empty() || stack_.back() == nullptr) fail("nothing stands there, expected a value");
    // Writers count from 0.
    if (place > memo_.size()) fail(message("memo ", place, " is set, expected ", memo_.size()));
    if (place == memo_.size()) memo_.emplace_back();
    memo_[place] = stack_.back();
  }
  void recall(uint64_t place) {
    if (place >= memo_.size()) {
      fail(message("memo ", place, " is asked for, expected less than ", memo_.size()));
    }
    push(memo_[place]);
  }

  void name(std::string_view module, std::string_view word) {
    for (const auto& [known_module, known] : kNames) {
      if (known_module == module && known == word) return push_text(Kind::kName, known);
    }
    fail(message("asks for ", module, ".", word, ", expected arrays of numpy only"));
  }

  // Bytes that a text of code points up to 255 stands for.
  Value latin1(std::string_view text) {
    auto memory = std::make_shared<std::string>();
    memory->reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = next_code_point(text.substr(at));
      if (!point.valid || point.value > 0xff) {
        fail(message("character ", memory->size(), " of a text is not of latin1, expected bytes"));
      }
      *memory += static_cast<char>(point.value);
      at += point.bytes;
    }
    Value value = make(Kind::kBytes);
    value->text = *memory;
    value->memory = std::move(memory);
    return value;
  }

  // Of the few functions that arrays need, what they would give.
  void reduce() {
    const Value arguments = pop(), function = pop();
    if (function->kind != Kind::kName || arguments->kind != Kind::kTuple) {
      fail(message("calls ", word_of(function->kind), " with ", word_of(arguments->kind),
                   ", expected a name and a tuple"));
    }
    const std::vector<Value>& given = arguments->items;
    const auto is = [&](size_t i, Kind kind) { return i < given.size() && given[i]->kind == kind; };
    if (function->text == kArrayMaker) return push(make(Kind::kArray));
    if (function->text == kType && (is(0, Kind::kText) || is(0, Kind::kBytes))) {
      push(make(Kind::kType));
      stack_.back()->type.append(1, '|').append(given[0]->text);
      return;
    }
    if (function->text == kEncode && is(0, Kind::kText) && is(1, Kind::kText) &&
        given[1]->text == "latin1") {
      return push(latin1(given[0]->text));
    }
    fail(message("calls ", function->text, " with other arguments, expected those of an array"));
  }

  void build() {
    const Value state = pop();
    if (stack_.empty() || stack_.back() == nullptr || state->kind != Kind::kTuple) {
      fail("builds of other than a tuple, expected an array or its type");
    }
    PickleValue& target = *stack_.back();
    const std::vector<Value>& given = state->items;
    const auto is = [&](size_t i, Kind kind) { return i < given.size() && given[i]->kind == kind; };
    if (target.kind == Kind::kType && (is(1, Kind::kText) || is(1, Kind::kBytes)) &&
        given[1]->text.size() == 1) {
      target.type[0] = given[1]->text[0];
      return;
    }
    const bool fits = target.kind == Kind::kArray && is(1, Kind::kTuple) && is(2, Kind::kType) &&
                      (is(3, Kind::kBool) || is(3, Kind::kInteger)) &&
                      (is(4, Kind::kBytes) || is(4, Kind::kText));
    if (!fits) fail(message("builds ", word_of(target.kind), " of another state than arrays have"));
    if (given[3]->integer != 0) fail("the array is in column order, expected row by row");
    for (const Value& size : given[1]->items) {
      if (size->kind != Kind::kInteger) fail("a size of the array is no number, expected one");
      target.shape.push_back(size->integer);
    }
    target.type = given[2]->type;
    target.text = given[4]->text;
    target.memory = given[4]->memory;
  }

  int64_t long_number() {
    const uint64_t count = number(1);
    if (count > 8) fail(message("a number has ", count, " bytes, expected at most 8"));
    if (count == 0) return 0;
    const uint64_t unused = 64 - 8 * count;
    return static_cast<int64_t>(number(static_cast<int>(count)) << unused) >> unused;
  }

  void set_item() {
    const Value value = pop(), key = pop();
    extend(Kind::kDict, {key, value});
  }

  void global() {
    const std::string_view module = line();
    name(module, line());
  }

  void stack_global() {
    const Value word = pop(), module = pop();
    if (word->kind != Kind::kText || module->kind != Kind::kText) {
      fail("a name is no text, expected one");
    }
    name(module->text, word->text);
  }

  void step(uint8_t code);

  const MappedFile& file_;
  std::span<const uint8_t> bytes_;
  size_t at_ = 0, start_ = 0;  // of what comes next, and of the opcode at work
  Pickle pickle_;
  std::vector<Value> stack_, memo_;
};

// clang-format off
void Reader::step(uint8_t code) {
  switch (code) {
    case 0x80:  // PROTO
      if (const uint64_t protocol = number(1); protocol < 2 || protocol > 4) {
        fail(message("protocol is ", protocol, ", expected 2 to 4"));
      }
      return;
    case 0x95: number(8); return;                                       // FRAME
    case '(': return push(nullptr);                                     // MARK
    case 'N': return push(make(Kind::kNone));                           // NONE
    case 0x88: return push_integer(Kind::kBool, 1);                     // NEWTRUE
    case 0x89: return push_integer(Kind::kBool, 0);                     // NEWFALSE
    case 'K': return push_integer(Kind::kInteger, int64_t(number(1)));  // BININT1
    case 'M': return push_integer(Kind::kInteger, int64_t(number(2)));  // BININT2
    case 'J': return push_integer(Kind::kInteger, int32_t(number(4)));  // BININT
    case 0x8a: return push_integer(Kind::kInteger, long_number());      // LONG1
    case 0x8c: return push_text(Kind::kText, take(number(1)));          // SHORT_BINUNICODE
    case 'X': return push_text(Kind::kText, take(number(4)));           // BINUNICODE
    case 0x8d: return push_text(Kind::kText, take(number(8)));          // BINUNICODE8
    case 'C': return push_text(Kind::kBytes, take(number(1)));          // SHORT_BINBYTES
    case 'B': return push_text(Kind::kBytes, take(number(4)));          // BINBYTES
    case 0x8e: return push_text(Kind::kBytes, take(number(8)));         // BINBYTES8
    case 'U': return push_text(Kind::kBytes, take(number(1)));          // SHORT_BINSTRING, Python 2
    case 'T': return push_text(Kind::kBytes, take(number(4)));          // BINSTRING, Python 2
    case ')': return tuple({});                                         // EMPTY_TUPLE
    case 0x85: return tuple_of(1);                                      // TUPLE1
    case 0x86: return tuple_of(2);                                      // TUPLE2
    case 0x87: return tuple_of(3);                                      // TUPLE3
    case 't': return tuple(pop_to_mark());                              // TUPLE
    case ']': return push(make(Kind::kList));                           // EMPTY_LIST
    case '}': return push(make(Kind::kDict));                           // EMPTY_DICT
    case 'a': return extend(Kind::kList, {pop()});                      // APPEND
    case 'e': return extend(Kind::kList, pop_to_mark());                // APPENDS
    case 's': return set_item();                                        // SETITEM
    case 'u': return extend(Kind::kDict, pop_to_mark());                // SETITEMS
    case 'q': return memoize(number(1));                                // BINPUT
    case 'r': return memoize(number(4));                                // LONG_BINPUT
    case 0x94: return memoize(memo_.size());                            // MEMOIZE
    case 'h': return recall(number(1));                                 // BINGET
    case 'j': return recall(number(4));                                 // LONG_BINGET
    case 'c': return global();                                          // GLOBAL
    case 0x93: return stack_global();                                   // STACK_GLOBAL
    case 'R': return reduce();                                          // REDUCE
    case 'b': return build();                                           // BUILD
    default: break;
  }
  char text[8];
  std::snprintf(text, sizeof text, "0x%02x", code);
  fail(message("opcode is ", text, " (", name_of_opcode(code),
               "), expected those of dictionaries, lists, numbers, texts and arrays"));
}
// clang-format on

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::kDict) return nullptr;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const bool is_word = items[i]->kind == Kind::kText || items[i]->kind == Kind::kBytes;
    if (is_word && items[i]->text == key) return items[i + 1];
  }
  return nullptr;
}

Pickle read_pickle(const std::shared_ptr<const MappedFile>& file) {
  return Reader(*file).run();
}

NpyArray array_of(const PickleValue& value, const std::shared_ptr<const MappedFile>& file,
                  const std::string& place) {
  if (value.kind != Kind::kArray) {
    throw std::runtime_error(message(place, ": is ", word_of(value.kind), ", expected an array"));
  }
  NpyArray array;
  array.place = place;
  array.type = value.type;
  // numpy writes | where the order of bytes does not matter.
  if (array.item_bytes() == 1) array.type[0] = '|';
  array.shape = value.shape;
  array.bytes = {reinterpret_cast<const uint8_t*>(value.text.data()), value.text.size()};
  if (value.memory) {
    array.owner = value.memory;
  } else {
    array.owner = file;
  }
  int64_t expected = array.item_bytes();
  for (const int64_t size : array.shape) {
    if (size < 0 || (size > 0 && expected > (int64_t{1} << 48) / size)) expected = -1;
    if (expected < 0) break;
    expected *= size;
  }
  if (array.item_bytes() == 0 || std::ssize(array.bytes) != expected) {
    throw std::runtime_error(message(place, ": has ", array.bytes.size(), " bytes of type ",
                                     array.type, ", expected ", expected, " of its shape"));
  }
  return array;
}

}  // namespace performer
