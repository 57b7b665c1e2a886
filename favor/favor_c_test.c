/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface from C: every function once where it works and once where it refuses. Numbers are
 * tested in C++; here they are held against each other. */
#include "favor/favor_c_testing.h"

static void test_matrices(void) {
  favor_projection_spec spec;
  favor_projection_spec_init(&spec);
  spec.num_rows = M;
  spec.head_dim = D;
  spec.seed = 7;
  CHECK_OK(favor_draw_projection(&spec, matrix));
  float again[M * D];
  CHECK_OK(favor_draw_projection(&spec, again));
  CHECK(memcmp(matrix, again, sizeof matrix) == 0);
  spec.kind = "iid";
  CHECK_OK(favor_draw_projection(&spec, again));
  CHECK(memcmp(matrix, again, sizeof matrix) != 0);
  CHECK_INVALID(favor_draw_projection(&spec, NULL),
                "favor_draw_projection: rows is a null pointer");
  CHECK_INVALID(favor_draw_projection(NULL, again),
                "favor_draw_projection: spec is a null pointer");
  spec.kind = NULL;
  CHECK_INVALID(favor_draw_projection(&spec, again),
                "favor_draw_projection: spec.kind is a null pointer");
  int64_t number = 0;
  CHECK_OK(favor_num_projection_rows("hyperbolic", 16, &number));
  CHECK(number == 8);
  CHECK_OK(favor_num_map_parameters("favor_sharp_diagonal", D, &number));
  CHECK(number == 1 + D);
  CHECK_INVALID(favor_num_map_parameters(NULL, D, &number),
                "favor_num_map_parameters: feature_map is a null pointer");
  CHECK_INVALID(favor_num_projection_rows("positive", 16, NULL),
                "favor_num_projection_rows: rows is a null pointer");
}

/* The compact form gives what the matrices themselves do, forward and backward. */
static void test_structured(void) {
  enum { P = G };
  static float rows[P * M * D], from_rows[3 * COUNT(q)], from_signs[3 * COUNT(q)];
  favor_projection_spec spec;
  favor_projection_spec_init(&spec);
  spec.kind = "hadamard";
  spec.num_rows = M;
  spec.head_dim = D;
  spec.seed = 5;
  spec.head = 3;
  favor_structured* structured = NULL;
  CHECK_OK(favor_structured_create(&spec, P, &structured));
  for (int p = 0; p < P; ++p, ++spec.head) {
    CHECK_OK(favor_draw_projection(&spec, rows + p * M * D));
  }
  favor_options dense = make_options(), compact = make_options();
  dense.projection = rows;
  compact.projection = NULL;
  compact.structured = structured;
  dense.num_projections = compact.num_projections = P;
  for (int is_causal = 0; is_causal < 2; ++is_causal) {
    for (int pass = 0; pass < 2; ++pass) {
      const favor_options* options = pass == 0 ? &dense : &compact;
      float* gradients = pass == 0 ? from_rows : from_signs;
      const favor_tensor result = to(pass == 0 ? out : other);
      const favor_tensor dq = tq(gradients), dk = tk(gradients + COUNT(q));
      const favor_tensor dv = tv(gradients + 2 * COUNT(q));
      favor_saved* saved = NULL;
      if (is_causal) {
        CHECK_OK(favor_causal_forward(options, tq(q), tk(k), tv(v), result, &saved, NULL, NULL));
        CHECK_OK(favor_causal_backward(options, tq(q), tk(k), tv(v), result, to(dout), saved, dq,
                                       dk, dv));
      } else {
        CHECK_OK(favor_bidirectional_forward(options, tq(q), tk(k), tv(v), result, &saved));
        CHECK_OK(favor_bidirectional_backward(options, tq(q), tk(k), tv(v), result, to(dout), saved,
                                              dq, dk, dv));
      }
      favor_saved_free(saved);
    }
    CHECK(difference(out, other, COUNT(out)) < 1e-5);
    CHECK(difference(from_rows, from_signs, COUNT(from_rows)) < 1e-5);
    CHECK(difference(from_rows, from_rows + COUNT(q), COUNT(k)) > 1e-4);
  }
  compact.projection = matrix;
  CHECK_INVALID(favor_causal_forward(&compact, tq(q), tk(k), tv(v), to(out), NULL, NULL, NULL),
                "causal_forward: projection and structured are both given, expected one of them");
  compact.projection = NULL;
  compact.num_projections = 1;
  CHECK_INVALID(favor_causal_forward(&compact, tq(q), tk(k), tv(v), to(out), NULL, NULL, NULL),
                "favor_causal_forward: num_projections is 1, expected 2 (the matrices of "
                "structured)");
  CHECK_INVALID(favor_structured_create(&spec, 0, &structured),
                "favor_structured_create: num_matrices is 0, expected 1 or more");
  CHECK_INVALID(favor_structured_create(&spec, 1, NULL),
                "favor_structured_create: structured is a null pointer");
  CHECK_INVALID(favor_structured_create(NULL, 1, &structured),
                "favor_structured_create: spec is a null pointer");
  favor_structured* none = NULL;
  spec.kind = "iid";
  CHECK_INVALID(favor_structured_create(&spec, 1, &none),
                "draw_structured_projection: kind is iid, expected hadamard");
  CHECK(none == NULL);
  favor_structured_free(structured);
  favor_structured_free(NULL);
}

/* dout . d out / d x along a random direction, by differences and by the gradient. */
static void check_gradient(favor_status (*forward)(void), float* x, const float* gradient,
                           size_t count) {
  const float step = 1e-2f;
  double expected = 0, measured = 0;
  for (int sign = -1; sign <= 1; sign += 2) {
    for (size_t i = 0; i < count; ++i) x[i] += (float)sign * step * (i % 3 == 0 ? 1.0f : -0.5f);
    CHECK_OK(forward());
    for (size_t i = 0; i < COUNT(out); ++i) measured += sign * (double)out[i] * dout[i];
    for (size_t i = 0; i < count; ++i) x[i] -= (float)sign * step * (i % 3 == 0 ? 1.0f : -0.5f);
  }
  measured /= 2 * (double)step;
  for (size_t i = 0; i < count; ++i) expected += gradient[i] * (i % 3 == 0 ? 1.0 : -0.5);
  CHECK(fabs(measured - expected) < 1e-2 * (1 + fabs(expected)));
}

static favor_status run_bidirectional(void) {
  const favor_options options = make_options();
  return favor_bidirectional_forward(&options, tq(q), tk(k), tv(v), to(out), NULL);
}
static favor_status run_exact(void) {
  favor_exact_options options;
  favor_exact_options_init(&options);
  return favor_exact_forward(&options, tq(q), tk(k), tv(v), to(out), NULL);
}

static void test_attention(void) {
  const favor_options options = make_options();
  static float dq[COUNT(q)], dk[COUNT(k)], dv[COUNT(v)], result[COUNT(out)];
  favor_saved* saved = NULL;
  CHECK_OK(favor_bidirectional_forward(&options, tq(q), tk(k), tv(v), to(result), &saved));
  CHECK_OK(favor_bidirectional_backward(&options, tq(q), tk(k), tv(v), to(result), to(dout), saved,
                                        tq(dq), tk(dk), tv(dv)));
  CHECK_INVALID(favor_causal_backward(&options, tq(q), tk(k), tv(v), to(result), to(dout), saved,
                                      tq(dq), tk(dk), tv(dv)),
                "favor_causal_backward: saved comes from a bidirectional pass over other sizes or "
                "under other options, expected this pass's own");
  favor_saved_free(saved);
  check_gradient(run_bidirectional, q, dq, COUNT(q));
  check_gradient(run_bidirectional, k, dk, COUNT(k));
  check_gradient(run_bidirectional, v, dv, COUNT(v));
  CHECK_INVALID(favor_bidirectional_backward(&options, tq(q), tk(k), tv(v), to(result), to(dout),
                                             NULL, tq(dq), tk(dk), tv(dv)),
                "favor_bidirectional_backward: saved is a null pointer");

  saved = NULL;
  CHECK_OK(favor_causal_forward(&options, tq(q), tk(k), tv(v), to(result), &saved, NULL, NULL));
  CHECK_OK(favor_causal_backward(&options, tq(q), tk(k), tv(v), to(result), to(dout), saved, tq(dq),
                                 tk(dk), tv(dv)));
  check_gradient(run_causal, q, dq, COUNT(q));
  check_gradient(run_causal, k, dk, COUNT(k));
  check_gradient(run_causal, v, dv, COUNT(v));
  favor_options half = options;
  half.num_features = M / 2;
  CHECK_INVALID(favor_causal_backward(&half, tq(q), tk(k), tv(v), to(result), to(dout), saved,
                                      tq(dq), tk(dk), tv(dv)),
                "favor_causal_backward: saved comes from a causal pass over other sizes or under "
                "other options, expected this pass's own");
  favor_saved_free(saved);
  favor_saved_free(NULL);

  favor_exact_options exact;
  favor_exact_options_init(&exact);
  static float normalizer[B * H * L];
  CHECK_OK(favor_exact_forward(&exact, tq(q), tk(k), tv(v), to(result), normalizer));
  CHECK_OK(favor_exact_backward(&exact, tq(q), tk(k), tv(v), to(result), to(dout), normalizer,
                                tq(dq), tk(dk), tv(dv)));
  check_gradient(run_exact, q, dq, COUNT(q));
  check_gradient(run_exact, k, dk, COUNT(k));
  check_gradient(run_exact, v, dv, COUNT(v));
}

/* Every option reaches its kernel: a change shows in the output, or is refused by name. */
static void test_options(void) {
  favor_options options = make_options();
  static uint8_t mask[B * L];
  static float log_weight[B * L];
  const int64_t offsets[3] = {0, 10, L};
  CHECK_OK(run_causal());
  const favor_tensor whole = to(other);
#define CHECK_CHANGES(change)                                                               \
  do {                                                                                      \
    options = make_options();                                                               \
    change;                                                                                 \
    CHECK_OK(favor_causal_forward(&options, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL)); \
    CHECK(difference(out, other, COUNT(out)) > 1e-4);                                       \
  } while (0)
  CHECK_CHANGES(options.feature_map = "relu");
  CHECK_CHANGES(options.scale = 3);
  CHECK_CHANGES(options.feature_eps = 0.5);
  CHECK_CHANGES(options.renormalize = 0);
  CHECK_CHANGES(options.num_features = M / 2);
  CHECK_CHANGES(options.num_projections = 2; options.num_features = M / 2);
  mask[0] = 1;
  CHECK_CHANGES(options.key_padding_mask = mask);
  log_weight[0] = 2;
  CHECK_CHANGES(options.key_log_weight = log_weight);
  CHECK_CHANGES(options.cu_seqlens_q = offsets; options.cu_seqlens_k = offsets;
                options.num_segments = 2);

  options = make_options();
  options.feature_map = "favor_sharp_diagonal";
  options.num_map_parameter_sets = G;
  float fitted[G * (1 + D)];
  CHECK_OK(favor_fit_feature_map(&options, tq(q), tk(k), fitted));
  options.map_parameters = fitted;
  CHECK_OK(favor_causal_forward(&options, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL));
  CHECK(difference(out, other, COUNT(out)) > 1e-4);
  CHECK_INVALID(favor_fit_feature_map(&options, tq(q), tk(k), NULL),
                "favor_fit_feature_map: parameters is a null pointer");

  options = make_options();
  options.compatibility = "official";
  CHECK_OK(favor_bidirectional_forward(&options, tq(q), tk(k), tv(v), whole, NULL));
  CHECK_OK(run_bidirectional());
  CHECK(difference(out, other, COUNT(out)) > 0);

#define CHECK_REFUSED(change, text)                                                             \
  do {                                                                                          \
    options = make_options();                                                                   \
    change;                                                                                     \
    CHECK_INVALID(favor_causal_forward(&options, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL), \
                  text);                                                                        \
  } while (0)
  CHECK_REFUSED(options.feature_map = NULL,
                "favor_causal_forward: options.feature_map is a null pointer");
  CHECK_REFUSED(options.compatibility = NULL,
                "favor_causal_forward: options.compatibility is a null pointer");
  CHECK_REFUSED(options.compatibility = "mine",
                "compatibility is 'mine', expected none | official");
  CHECK_REFUSED(
      options.cu_seqlens_q = offsets;
      options.cu_seqlens_k = offsets,
      "favor_causal_forward: num_segments is 0, expected 1 or more (cu_seqlens are given)");
  char text[200];
  options = make_options();
  options.size = sizeof options + 8;
  snprintf(text, sizeof text,
           "favor_causal_forward: options has size %zu, expected at most %zu (set by its init "
           "function; a newer header needs a newer library)",
           sizeof options + 8, sizeof options);
  CHECK_INVALID(favor_causal_forward(&options, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL), text);
  CHECK_INVALID(favor_causal_forward(NULL, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL),
                "favor_causal_forward: options is a null pointer");

  /* A caller with an older header: fields behind its own have their defaults. */
  options = make_options();
  options.num_key_log_weights = 77;
  options.size = offsetof(favor_options, num_key_log_weights);
  CHECK_OK(run_causal());
  CHECK_OK(favor_causal_forward(&options, tq(q), tk(k), tv(v), whole, NULL, NULL, NULL));
  CHECK(difference(out, other, COUNT(out)) == 0);

  options = make_options();
  favor_tensor wrong = tq(q);
  wrong.dtype = 9;
  CHECK_INVALID(favor_causal_forward(&options, wrong, tk(k), tv(v), whole, NULL, NULL, NULL),
                "favor_causal_forward: q has dtype 9, expected 0, 1 or 2 (a favor_dtype)");
  CHECK_INVALID(
      favor_causal_forward(&options, tq(q), part(tk(k), 0, 3), tv(v), whole, NULL, NULL, NULL),
      "causal_forward: v has shape [1, 2, 40, 6], expected [1, 2, 3, 6] (same B, heads "
      "and S as k)");
}

static void test_exact_options(void) {
  favor_exact_options options;
  static uint8_t mask[B * L];
  static float log_weight[B * L];
  const int64_t offsets[3] = {0, 10, L};
  CHECK_OK(run_exact());
#define CHECK_EXACT_CHANGES(change)                                                \
  do {                                                                             \
    favor_exact_options_init(&options);                                            \
    change;                                                                        \
    CHECK_OK(favor_exact_forward(&options, tq(q), tk(k), tv(v), to(other), NULL)); \
    CHECK(difference(out, other, COUNT(out)) > 1e-4);                              \
  } while (0)
  CHECK_EXACT_CHANGES(options.scale = 3);
  CHECK_EXACT_CHANGES(options.is_causal = 1);
  mask[0] = 1;
  CHECK_EXACT_CHANGES(options.key_padding_mask = mask);
  log_weight[0] = 2;
  CHECK_EXACT_CHANGES(options.key_log_weight = log_weight);
  CHECK_EXACT_CHANGES(options.window = 4);
  CHECK_EXACT_CHANGES(options.window = 4; options.sinks = 2);
  CHECK_EXACT_CHANGES(options.cu_seqlens_q = offsets; options.cu_seqlens_k = offsets;
                      options.num_segments = 2);
  options.num_segments = 0;
  CHECK_INVALID(
      favor_exact_forward(&options, tq(q), tk(k), tv(v), to(other), NULL),
      "favor_exact_forward: num_segments is 0, expected 1 or more (cu_seqlens are given)");
  CHECK_INVALID(favor_exact_forward(NULL, tq(q), tk(k), tv(v), to(other), NULL),
                "favor_exact_forward: options is a null pointer");
}

/* bfloat16 as the upper halves of floats that it holds exactly. */
static void test_dtypes(void) {
  static uint16_t half_q[COUNT(q)], half_k[COUNT(k)], half_v[COUNT(v)], half_out[COUNT(out)];
  static float wide_q[COUNT(q)], wide_k[COUNT(k)], wide_v[COUNT(v)];
  const favor_options options = make_options();
#define HALVE(x)                              \
  for (size_t i = 0; i < COUNT(x); ++i) {     \
    uint32_t word;                            \
    memcpy(&word, &x[i], sizeof word);        \
    half_##x[i] = (uint16_t)(word >> 16);     \
    word &= 0xffff0000u;                      \
    memcpy(&wide_##x[i], &word, sizeof word); \
  }
  HALVE(q)
  HALVE(k)
  HALVE(v)
  favor_tensor tensors[4] = {tq((const float*)half_q), tk((const float*)half_k),
                             tv((const float*)half_v), to((const float*)half_out)};
  for (int i = 0; i < 4; ++i) tensors[i].dtype = FAVOR_BFLOAT16;
  CHECK_OK(favor_causal_forward(&options, tensors[0], tensors[1], tensors[2], tensors[3], NULL,
                                NULL, NULL));
  CHECK_OK(favor_causal_forward(&options, tq(wide_q), tk(wide_k), tv(wide_v), to(out), NULL, NULL,
                                NULL));
  for (size_t i = 0; i < COUNT(out); ++i) {
    const uint32_t word = (uint32_t)half_out[i] << 16;
    memcpy(&other[i], &word, sizeof word);
  }
  CHECK(difference(out, other, COUNT(out)) < 0.5 / 256);
  CHECK_INVALID(
      favor_causal_forward(&options, tensors[0], tk(k), tensors[2], tensors[3], NULL, NULL, NULL),
      "favor_causal_forward: k has dtype 0, expected 1 (as q)");
  favor_exact_options exact;
  favor_exact_options_init(&exact);
  CHECK_INVALID(favor_exact_forward(&exact, tensors[0], tk(k), tv(v), to(out), NULL),
                "favor_exact_forward: q has dtype 1, expected 0 (FAVOR_FLOAT32)");
}

static void test_library(void) {
  CHECK(strcmp(favor_last_error(), "") == 0);
  CHECK(strchr(favor_version(), '.') != NULL);
  CHECK(strlen(favor_isa()) > 0);
  int threads = 0, after = 0;
  CHECK_OK(favor_num_threads(&threads));
  CHECK_OK(favor_set_num_threads(2));
  CHECK_OK(favor_num_threads(&after));
  CHECK(after == 2);
  CHECK_OK(favor_set_num_threads(threads));
  CHECK(favor_set_num_threads(0) == FAVOR_INVALID_ARGUMENT);
  CHECK_INVALID(favor_num_threads(NULL), "favor_num_threads: threads is a null pointer");
}

int main(void) {
  test_library();
  fill_problem();
  test_matrices();
  test_attention();
  test_structured();
  test_options();
  test_exact_options();
  test_dtypes();
  return report("favor_c_test");
}
