// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pickle.h"

#include <gtest/gtest.h>

#include "performer/data/testing.h"
#include "performer/data/testing_numpy.h"

namespace performer {
namespace {

using Kind = PickleValue::Kind;

class PickleFile : public ::testing::Test {
 protected:
  Pickle read(const std::string& bytes) {
    file_ = std::make_shared<const MappedFile>(folder_.write("a", bytes));
    return read_pickle(file_);
  }
  // Behind the file's name.
  std::string error(const std::string& bytes) {
    const std::string text = message_of<std::runtime_error>([&] { read(bytes); });
    EXPECT_TRUE(text.starts_with(folder_.file("a") + ": ")) << text;
    return text.substr(std::min(text.size(), folder_.file("a").size() + 2));
  }

  TemporaryFolder folder_;
  std::shared_ptr<const MappedFile> file_;
};

std::string pickle(const std::string& body, int protocol = 2) {
  return "\x80" + std::string(1, static_cast<char>(protocol)) + body;
}

TEST_F(PickleFile, ArraysAreReadAsPythonWritesThem) {
  for (const std::string& bytes : {kNumpyPickle2, kNumpyPickle3, kNumpyPickle4}) {
    NpyArray data;
    {
      const Pickle whole = read(bytes);
      ASSERT_EQ(whole.root->kind, Kind::kDict);
      EXPECT_EQ(whole.root->find("mean"), nullptr);
      const PickleValue* labels = whole.root->find("labels");
      ASSERT_NE(labels, nullptr);
      ASSERT_EQ(labels->items.size(), 2u);
      EXPECT_EQ(labels->items[0]->integer, 3);
      ASSERT_NE(whole.root->find("data"), nullptr);
      data = array_of(*whole.root->find("data"), file_, "a: data");
    }
    // The array outlives the pickle.
    EXPECT_EQ(data.type, "|u1");
    EXPECT_EQ(data.shape, (std::vector<int64_t>{2, 12}));
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(data.bytes[static_cast<size_t>(i)], i);
      EXPECT_EQ(data.bytes[static_cast<size_t>(12 + i)], 212 + i);
    }
  }
}

TEST_F(PickleFile, NumbersListsAndTuples) {
  std::string bytes = pickle("(K\x05M\x01\x02J");
  bytes += little(0xfffffff0, 4) + std::string("\x8a\x02\x00\xff", 4) + "\x88\x89N]K\x07" + "a" +
           std::string("U\x02hi", 4) + "t.";
  const Pickle whole = read(bytes);
  const auto& items = whole.root->items;
  ASSERT_EQ(whole.root->kind, Kind::kTuple);
  ASSERT_EQ(items.size(), 9u);
  EXPECT_EQ(items[0]->integer, 5);
  EXPECT_EQ(items[1]->integer, 0x201);
  EXPECT_EQ(items[2]->integer, -16);
  EXPECT_EQ(items[3]->integer, -256);
  EXPECT_EQ(items[4]->integer, 1);
  EXPECT_EQ(items[5]->integer, 0);
  EXPECT_EQ(items[6]->kind, Kind::kNone);
  EXPECT_EQ(items[7]->items[0]->integer, 7);
  EXPECT_EQ(items[8]->text, "hi");
}

TEST_F(PickleFile, NothingElseIsReadOrCalled) {
  EXPECT_EQ(error("no pickle"),
            "byte 0: is no pickle of protocol 2 or later, expected one that begins with 0x80");
  EXPECT_EQ(error(pickle("N.", 5)), "byte 0: protocol is 5, expected 2 to 4");
  // What would run a program.
  EXPECT_EQ(error(pickle("cos\nsystem\nX" + little(4, 4) + "true\x85R.")),
            "byte 2: asks for os.system, expected arrays of numpy only");
  EXPECT_EQ(error(pickle("\x8c\x05posix\x8c\x06system\x93.", 4)),
            "byte 17: asks for posix.system, expected arrays of numpy only");
  EXPECT_EQ(error(pickle("cnumpy\nndarray\n)\x81.")),
            "byte 18: opcode is 0x81 (NEWOBJ), expected those of dictionaries, lists, numbers, "
            "texts and arrays");
  EXPECT_EQ(error(pickle("\x82\x01.")).substr(0, 32), "byte 2: opcode is 0x82 (EXT1), e");
  EXPECT_EQ(error(pickle("\x01.")).substr(0, 34), "byte 2: opcode is 0x01 (unknown), ");
  EXPECT_EQ(error(pickle("Pid\n.")).substr(0, 33), "byte 2: opcode is 0x50 (PERSID), ");
  EXPECT_EQ(error(pickle("cnumpy\nndarray\n)R.")),
            "byte 18: calls ndarray with other arguments, expected those of an array");
  EXPECT_EQ(error(pickle("N)R.")), "byte 4: calls None with a tuple, expected a name and a tuple");
  EXPECT_EQ(error(pickle("c_codecs\nencode\nX" + little(1, 4) + "aX" + little(4, 4) + "utf8\x86R."))
                .substr(0, 50),
            "byte 34: calls encode with other arguments, expect");
}

TEST_F(PickleFile, DamageIsRefusedWithItsPlace) {
  EXPECT_EQ(error(pickle("X" + little(100, 4) + "abc.")),
            "byte 2: the file ends, expected 100 more bytes");
  EXPECT_EQ(error(pickle("N")), "byte 3: the file ends, expected 1 more bytes");
  EXPECT_EQ(error(pickle("cnumpy")),
            "byte 2: the file ends within a name, expected the end of its line");
  EXPECT_EQ(error(pickle(".")), "byte 2: nothing stands there, expected a value");
  EXPECT_EQ(error(pickle("(.")), "byte 3: nothing stands there, expected a value");
  EXPECT_EQ(error(pickle("NN.")), "byte 4: more than one value is left, expected one");
  EXPECT_EQ(error(pickle("N.N")), "byte 3: 1 bytes follow, expected none");
  EXPECT_EQ(error(pickle("t.")), "byte 2: no mark stands before, expected one");
  EXPECT_EQ(error(pickle("NNs.")), "byte 4: the value before is missing, expected a dictionary");
  EXPECT_EQ(error(pickle("]NNs.")), "byte 5: the value before is a list, expected a dictionary");
  EXPECT_EQ(error(pickle("}(Nu.")), "byte 5: a key has no value, expected one");
  EXPECT_EQ(error(pickle("h\x03.")), "byte 2: memo 3 is asked for, expected less than 0");
  EXPECT_EQ(error(pickle("Nq\x05.")), "byte 3: memo 5 is set, expected 0");
  EXPECT_EQ(error(pickle("\x8a\x09" + std::string(9, 'x') + ".")),
            "byte 2: a number has 9 bytes, expected at most 8");
  EXPECT_EQ(error(pickle("NNb.")),
            "byte 4: builds of other than a tuple, expected an array or its "
            "type");
  EXPECT_EQ(error(pickle("N)b.")), "byte 4: builds None of another state than arrays have");
  // Every shorter file is refused, whatever is left of it.
  for (size_t size = 0; size < kNumpyPickle4.size(); ++size) {
    EXPECT_THROW(read(kNumpyPickle4.substr(0, size)), std::runtime_error) << size;
  }
  // A nest of any depth.
  EXPECT_NO_THROW(read(pickle("N" + std::string(1000000, '\x85') + ".")));
}

TEST_F(PickleFile, ArraysOfAnotherFormAreRefused) {
  std::string bytes = kNumpyPickle3;
  const size_t flag = bytes.find(
      "\x89"
      "C\x18");
  ASSERT_NE(flag, std::string::npos);
  bytes[flag] = '\x88';
  EXPECT_NE(error(bytes).find("the array is in column order, expected row by row"),
            std::string::npos);
  bytes = kNumpyPickle3;
  const size_t shape = bytes.find("K\x02K\x0c\x86");
  ASSERT_NE(shape, std::string::npos);
  bytes[shape + 1] = 3;
  const Pickle whole = read(bytes);
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { array_of(*whole.root->find("data"), file_, "a: data"); }),
            "a: data: has 24 bytes of type |u1, expected 36 of its shape");
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { array_of(*whole.root->find("labels"), file_, "a: labels"); }),
            "a: labels: is a list, expected an array");
}

}  // namespace
}  // namespace performer
