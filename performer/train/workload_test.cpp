// SPDX-License-Identifier: Apache-2.0
#include "performer/train/workload.h"

#include <gtest/gtest.h>

#include "favor/check.h"

namespace performer {
namespace {

WorkOptions tiny(WorkKind kind) {
  WorkOptions options;
  options.kind = kind;
  options.model.dim = 16;
  options.model.num_layers = 1;
  options.model.num_heads = 2;
  options.model.ff_dim = 32;
  options.model.positions = PositionKind::kSinusoidal;
  options.model.attention.num_features = 8;
  options.length = 20;
  options.batch = 3;
  return options;
}

TEST(Workload, RunsEveryKindInBothTypesAndCountsItsTokens) {
  for (const bool bfloat16 : {false, true}) {
    for (const AttentionMethod method : attention_methods()) {
      for (const WorkKind kind : {WorkKind::kTrain, WorkKind::kEncode, WorkKind::kGenerate}) {
        const bool causal = has_causal_form(method);
        if (kind == WorkKind::kGenerate && !causal) continue;
        WorkOptions options = tiny(kind);
        options.model.causal = causal;
        options.model.attention.method = method;
        options.model.attention.local_window = 4;
        options.model.attention.window = method == AttentionMethod::kCentroids ? 4 : 0;
        options.bfloat16 = bfloat16;
        Workload work(options);
        EXPECT_EQ(work.tokens(), kind == WorkKind::kGenerate ? 3 : 60);
        work.run();
        work.run();
      }
    }
  }
}

TEST(Workload, SaysWhatCannotBe) {
  const auto text = [](const WorkOptions& options) -> std::string {
    try {
      Workload work(options);
    } catch (const favor::Error& error) {
      return error.what();
    }
    return "no error";
  };
  WorkOptions options = tiny(WorkKind::kGenerate);
  options.model.causal = false;
  EXPECT_EQ(text(options), "causal is false, expected true (to generate)");
  options = tiny(WorkKind::kTrain);
  options.length = 0;
  EXPECT_EQ(text(options), "length is 0, expected at least 1");
  options.length = 1;
  options.batch = -1;
  EXPECT_EQ(text(options), "batch is -1, expected at least 1");
  EXPECT_EQ(to_string(work_kind_from_string("encode")), "encode");
  EXPECT_THROW(work_kind_from_string("decode"), favor::Error);
}

}  // namespace
}  // namespace performer
