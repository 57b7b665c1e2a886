// SPDX-License-Identifier: Apache-2.0
// Snapshots go on in the same bits, and whatever does not fit is refused by name.
#include "favor/snapshot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "favor/favor.h"
#include "favor/safetensors.h"
#include "favor/sha256.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

constexpr int64_t kB = 2, kH = 2, kD = 5, kE = 3, kM = 7;

// A stream of steps under one set of parameters.
struct Stream {
  std::vector<float> projection = draw_projection({.num_features = kM, .head_dim = kD});
  AttentionParams<float> params;
  DecodeState state{kB, kH, kM, kE};

  Stream() {
    params.projection = projection.data();
    params.num_features = kM;
  }
  Stream(const Stream&) = delete;

  std::vector<float> step(DecodeState& to, int64_t t) const {
    const auto token = [t](uint64_t stream, int64_t width) {
      RandomStream rng(static_cast<uint64_t>(t), stream);
      std::vector<float> x(static_cast<size_t>(kB * kH * width));
      for (float& value : x) value = static_cast<float>(rng.normal());
      return x;
    };
    const std::vector<float> q = token(1, kD), k = token(2, kD), v = token(3, kE);
    std::vector<float> out(static_cast<size_t>(kB * kH * kE));
    decode_step(params, contiguous_view(q.data(), kB, kH, 1, kD),
                contiguous_view(k.data(), kB, kH, 1, kD), contiguous_view(v.data(), kB, kH, 1, kE),
                to, contiguous_view(out.data(), kB, kH, 1, kE));
    return out;
  }
  void steps(int64_t count) {
    for (int64_t t = 0; t < count; ++t) step(state, t);
  }
  std::string bytes() const { return state_to_bytes(state, params, kD); }
};

TEST(Sha256, MatchesThePublishedVectors) {
  const auto hash = [](const std::string& text) {
    Sha256 sha;
    sha.update(text.data(), text.size());
    return sha.digest();
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 pieces;
  const std::string part(1001, 'a');
  for (int i = 0; i < 999; ++i) pieces.update(part.data(), part.size());
  pieces.update(part.data(), 1);  // a million and no more
  EXPECT_EQ(pieces.digest(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Snapshot, GoesOnInTheSameBits) {
  for (const int64_t count : {0, 1, 31, 32, 100}) {
    SCOPED_TRACE(count);
    Stream stream;
    stream.steps(count);
    DecodeState loaded = state_from_bytes(stream.bytes(), stream.params, kD);
    EXPECT_EQ(loaded.position, count);
    EXPECT_EQ(state_to_bytes(loaded, stream.params, kD), stream.bytes());
    for (int64_t t = count; t < count + 40; ++t) {
      ASSERT_EQ(stream.step(loaded, t), stream.step(stream.state, t)) << "token " << t;
    }
  }
}

TEST(Snapshot, ServesStatesOfPassesAndEmptyOnes) {
  Stream stream;
  stream.steps(10);
  flush(stream.state);
  stream.state.S_rest.clear();
  stream.state.z_rest.clear();
  const DecodeState loaded = state_from_bytes(stream.bytes(), stream.params, kD);
  EXPECT_EQ(loaded.S, stream.state.S);
  EXPECT_EQ(loaded.c, stream.state.c);
  EXPECT_EQ(loaded.z, stream.state.z);
  EXPECT_TRUE(loaded.S_rest.empty());
  const DecodeState none(0, kH, kM, kE);
  EXPECT_EQ(state_from_bytes(state_to_bytes(none, stream.params, kD), stream.params, kD).H, kH);
}

TEST(Snapshot, KeepsMapsWithoutAMatrixAndFittedOnes) {
  Stream stream;
  stream.params = {};
  stream.params.feature_map = FeatureMapKind::kElu1;
  stream.state = DecodeState(kB, kH, kD, kE);
  stream.steps(3);
  EXPECT_EQ(state_from_bytes(stream.bytes(), stream.params, kD).z, stream.state.z);
  Stream fitted;
  const float parameters[] = {-0.25f};
  fitted.params.feature_map = FeatureMapKind::kOptimalPositive;
  fitted.params.map_parameters = parameters;
  const std::string bytes = fitted.bytes();
  EXPECT_EQ(state_from_bytes(bytes, fitted.params, kD).M, kM);
  const float others[] = {-0.5f};
  fitted.params.map_parameters = others;
  EXPECT_THROW(state_from_bytes(bytes, fitted.params, kD), std::runtime_error);
}

class SnapshotFile : public testing::Test {
 protected:
  std::string path() const {
    return (std::filesystem::temp_directory_path() /
            message("favor-snapshot-", ::getpid(), ".safetensors"))
        .string();
  }
  void TearDown() override { std::filesystem::remove(path()); }
};

TEST_F(SnapshotFile, HoldsTheBytes) {
  Stream stream;
  stream.steps(40);
  save_state(path(), stream.state, stream.params, kD);
  std::ifstream in(path(), std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(content, stream.bytes());
  DecodeState loaded = load_state(path(), stream.params, kD);
  EXPECT_EQ(stream.step(loaded, 40), stream.step(stream.state, 40));
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata().at("format_version"), "1");
  EXPECT_EQ(file.metadata().at("position"), "40");
  EXPECT_EQ(file.metadata().at("feature_map"), "positive");
  EXPECT_EQ(file.metadata().at("dtype"), "float32");
  EXPECT_EQ(file.metadata().at("matrix_hash"), matrix_hash(stream.projection.data(), kM * kD));
  EXPECT_EQ(file.at("S").shape, (std::vector<int64_t>{kB, kH, kM, kE}));
  EXPECT_EQ(file.at("hot_values").shape, (std::vector<int64_t>{kB, kH, 40 % kHotTokens, kE}));
}

TEST_F(SnapshotFile, ErrorsNameTheFile) {
  const Stream stream;
  const std::string folder = "/nonexistent-folder/x";
  EXPECT_EQ(test::error_of<std::exception>([&] { load_state(folder, stream.params, kD); }),
            folder + ": cannot open: No such file or directory");
  EXPECT_EQ(
      test::error_of<std::exception>([&] { save_state(folder, stream.state, stream.params, kD); }),
      folder + ": cannot create the file: No such file or directory");
  std::ofstream(path()) << "abc";
  EXPECT_EQ(test::error_of<std::exception>([&] { load_state(path(), stream.params, kD); }),
            path() + ": safetensors file has 3 bytes, expected at least 8");
}

TEST(Snapshot, RefusesWhatBelongsToAnotherComputation) {
  Stream stream;
  stream.steps(5);
  const std::string bytes = stream.bytes();
  const auto refusal = [&](const std::function<void(AttentionParams<float>&)>& change,
                           int64_t head_dim = kD) {
    AttentionParams<float> params = stream.params;
    change(params);
    return test::error_of<std::exception>(
        [&] { state_from_bytes(bytes, params, head_dim, "here"); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "no error");
  EXPECT_EQ(refusal([](auto& p) { p.feature_map = FeatureMapKind::kSoftplus; }),
            "here: feature_map is positive, expected softplus");
  std::vector<float> other = stream.projection;
  other[3] = std::nextafter(other[3], 10.0f);
  EXPECT_EQ(refusal([&](auto& p) { p.projection = other.data(); }),
            message("here: matrix_hash is ", matrix_hash(stream.projection.data(), kM * kD),
                    ", expected ", matrix_hash(other.data(), kM * kD)));
  EXPECT_EQ(refusal([](auto& p) { p.scale = 0.5; }).substr(0, 15), "here: scale is ");
  EXPECT_EQ(refusal([](auto& p) { p.feature_eps = 0.5; }), "here: feature_eps is 0, expected 0.5");
  EXPECT_EQ(refusal([](auto& p) { p.window = 4; }), "here: window is 0, expected 4");
  EXPECT_EQ(refusal([](auto&) {}, kD - 1), "here: head_dim is 5, expected 4");
  EXPECT_EQ(refusal([](auto& p) { p.num_features = kM - 1; }),
            "here: num_features is 7, expected 6");
}

// The snapshot with changed metadata or tensors, and a checksum that fits them if asked to.
std::string rewritten(const std::string& bytes,
                      const std::function<void(std::map<std::string, std::string>&)>& change) {
  const SafetensorsFile file("rewritten", bytes);
  std::map<std::string, std::string> metadata = file.metadata();
  change(metadata);
  return safetensors_bytes(file.tensors(), metadata);
}

TEST(Snapshot, RefusesWhatIsNoWholeSnapshot) {
  Stream stream;
  stream.steps(5);
  const std::string bytes = stream.bytes();
  const auto refusal = [&](const std::string& content) {
    return test::error_of<std::exception>([&] { state_from_bytes(content, stream.params, kD); });
  };
  EXPECT_EQ(refusal(rewritten(bytes, [](auto& m) { m["format_version"] = "2"; })),
            "snapshot: format_version is 2, expected 1");
  EXPECT_EQ(refusal(rewritten(bytes, [](auto& m) { m["dtype"] = "bfloat16\n"; })),
            "snapshot: dtype is bfloat16?, expected float32");
  EXPECT_EQ(refusal(rewritten(bytes, [](auto& m) { m.clear(); })),
            "snapshot: no snapshot of a decoding state: it has no format_version");
  EXPECT_NE(refusal(rewritten(bytes, [](auto& m) { m["position"] = "6"; })).find("(damaged file?)"),
            std::string::npos);
  // Every cut is noticed, and so is every flipped bit of the data.
  for (size_t size = 0; size < bytes.size(); size += 7) {
    EXPECT_EQ(refusal(bytes.substr(0, size)).substr(0, 10), "snapshot: ") << size;
  }
  for (size_t at = 0; at < bytes.size(); at += 3) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_NE(refusal(damaged), "no error") << at;
  }
}

// Files whose checksum fits but whose content does not, as another program might write them.
TEST(Snapshot, RefusesTensorsThatDoNotFit) {
  Stream stream;
  stream.steps(5);
  const std::string bytes = stream.bytes();
  const auto refusal = [&](const std::function<void(std::vector<StoredTensor>&,
                                                    std::map<std::string, std::string>&)>& change) {
    const SafetensorsFile file("snapshot", bytes);
    std::vector<StoredTensor> tensors = file.tensors();
    std::map<std::string, std::string> metadata = file.metadata();
    change(tensors, metadata);
    std::string error;
    // The message of the first try tells the checksum that was expected.
    for (int round = 0; round < 2; ++round) {
      error = test::error_of<std::exception>(
          [&] { state_from_bytes(safetensors_bytes(tensors, metadata), stream.params, kD); });
      const size_t at = error.find(", expected ");
      if (error.find("checksum is") == std::string::npos) break;
      metadata["checksum"] = error.substr(at + 11, 64);
    }
    return error;
  };
  const auto tensor = [](std::vector<StoredTensor>& all, const char* name) -> StoredTensor& {
    for (StoredTensor& each : all) {
      if (each.name == name) return each;
    }
    throw std::logic_error("no such tensor");
  };
  const auto drop = [](std::vector<StoredTensor>& all, const char* name) {
    std::erase_if(all, [&](const StoredTensor& each) { return each.name == name; });
  };
  EXPECT_EQ(refusal([&](auto& t, auto&) { drop(t, "z"); }), "snapshot: tensor 'z' is missing");
  EXPECT_EQ(refusal([&](auto& t, auto&) { drop(t, "hot_values"); }),
            "snapshot: tensor 'hot_values' is missing");
  EXPECT_EQ(refusal([&](auto& t, auto&) { drop(t, "z_rest"); }),
            "snapshot: tensor 'z_rest' is missing");
  EXPECT_EQ(refusal([&](auto& t, auto&) { tensor(t, "c").shape = {kB * kH * kM}; }),
            "snapshot: tensor 'c' is F32 of shape [28], expected F32 of [2, 2, 7]");
  EXPECT_EQ(refusal([&](auto& t, auto&) { tensor(t, "z").type = StoredType::kI32; }),
            "snapshot: tensor 'z' is I32 of shape [2, 2, 7], expected F32 of [2, 2, 7]");
  EXPECT_EQ(refusal([&](auto& t, auto&) { tensor(t, "S").shape = {kB * kH * kM * kE}; }),
            "snapshot: tensor 'S' has shape [84], expected [B, H, M, E]");
  EXPECT_EQ(refusal([&](auto& t, auto&) {
              tensor(t, "S").shape = {kB, kM, kH, kE};
            }),
            "snapshot: tensor 'S' has shape [2, 7, 2, 3], expected M = 7 (num_features)");
  EXPECT_EQ(refusal([&](auto& t, auto&) {
              tensor(t, "hot_features").shape = {5, 2, 2, kM};
            }).substr(0, 47),
            "snapshot: tensor 'hot_features' is F32 of shape");
  EXPECT_EQ(refusal([&](auto& t, auto&) {
              tensor(t, "hot_features").shape = {1, 2, 70, 1};
            }),
            "snapshot: tensor 'hot_features' has shape [1, 2, 70, 1], expected 1 to 15 tokens in "
            "its third place");
  EXPECT_EQ(refusal([&](auto&, auto& m) { m["position"] = "-1"; }),
            "snapshot: position is -1, expected a whole number, 0 or above");
  EXPECT_EQ(refusal([&](auto&, auto& m) { m.erase("position"); }),
            "snapshot: no snapshot of a decoding state: it has no position");
}

TEST(Snapshot, ErrorsNameTheArgument) {
  const Stream stream;
  const auto error = [&](const std::function<void(DecodeState&, AttentionParams<float>&)>& change,
                         int64_t head_dim = kD) {
    DecodeState state = stream.state;
    AttentionParams<float> params = stream.params;
    change(state, params);
    return test::error_of<std::exception>([&] { state_to_bytes(state, params, head_dim); });
  };
  EXPECT_EQ(error([](auto&, auto&) {}, 0), "state_to_bytes: head_dim is 0, expected D >= 1");
  EXPECT_EQ(error([](auto& s, auto&) { s.z.clear(); }),
            "state_to_bytes: state has 28, 84, 0 elements in c, S, z, expected 28, 84, 28");
  EXPECT_EQ(error([](auto& s, auto&) { s = DecodeState(kB, kH, kM + 1, kE); }),
            "state_to_bytes: state has M = 8, expected 7 (num_features)");
  EXPECT_EQ(error([](auto& s, auto&) { s.position = -3; }),
            "state_to_bytes: state has position -3, expected 0 or more");
  EXPECT_EQ(error([](auto&, auto& p) { p.num_features = 0; }),
            "state_to_bytes: num_features and num_projections are 0 and 1, expected at least 1 and "
            "1");
  const float parameters[] = {0};
  EXPECT_EQ(error([&](auto&, auto& p) {
              p.map_parameters = parameters;
              p.num_map_parameter_sets = 0;
            }),
            "state_to_bytes: num_map_parameter_sets is 0, expected at least 1");
}

}  // namespace
}  // namespace favor
