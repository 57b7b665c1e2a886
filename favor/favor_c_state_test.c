/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding states from C. */
#include <stdlib.h>

#include "favor/favor_c_testing.h"

static void run_steps_with(const favor_options* options, favor_state* state, int64_t begin,
                           int64_t end, favor_tensor result) {
  for (int64_t t = begin; t < end; ++t) {
    CHECK_OK(favor_decode_step(options, part(tq(q), t, t + 1), part(tk(k), t, t + 1),
                               part(tv(v), t, t + 1), state, part(result, t, t + 1)));
  }
}

static void run_steps(favor_state* state, int64_t begin, int64_t end, favor_tensor result) {
  const favor_options options = make_options();
  run_steps_with(&options, state, begin, end, result);
}

static void test_states(void) {
  const favor_options options = make_options();
  CHECK_OK(run_causal());
  favor_state *state = NULL, *fork = NULL, *later = NULL, *loaded = NULL;
  CHECK_OK(favor_state_create(B, G, M, E, &state));
  run_steps(state, 0, 20, to(other));
  CHECK_OK(favor_state_copy(state, &fork));
  run_steps(state, 20, L, to(other));
  CHECK(difference(out, other, COUNT(out)) < 1e-5);
  int64_t position = 0;
  CHECK_OK(favor_state_position(state, &position));
  CHECK(position == L);

  /* The fork goes on, in a pass, and through a merge. */
  CHECK_OK(favor_state_create(B, G, M, E, &later));
  CHECK_OK(favor_causal_forward(&options, part(tq(q), 20, L), part(tk(k), 20, L),
                                part(tv(v), 20, L), part(to(other), 20, L), NULL, fork, later));
  CHECK(difference(out, other, COUNT(out)) < 1e-5);
  favor_state_free(later);
  CHECK_OK(favor_state_create(B, G, M, E, &later));
  run_steps(later, 20, L - 1, to(other));
  CHECK_OK(favor_state_merge(fork, later));
  run_steps(fork, L - 1, L, to(other));
  CHECK_OK(favor_state_position(fork, &position));
  CHECK(position == L);
  for (int h = 0; h < H; ++h) {
    const size_t last = (size_t)((h + 1) * L - 1) * E;
    CHECK(difference(out + last, other + last, E) < 1e-5);
  }

  /* Snapshots go on in the same bits. */
  size_t size = 0, again = 0;
  CHECK_OK(favor_state_to_bytes(later, &options, D, NULL, 0, &size));
  char* bytes = malloc(size);
  CHECK_OK(favor_state_to_bytes(later, &options, D, bytes, size, &again));
  CHECK(again == size);
  CHECK_OK(favor_state_from_bytes(bytes, size, &options, D, &loaded));
  run_steps(later, L - 1, L, to(out));
  run_steps(loaded, L - 1, L, to(other));
  for (int h = 0; h < H; ++h) {
    const size_t last = (size_t)((h + 1) * L - 1) * E;
    CHECK(difference(out + last, other + last, E) == 0);
  }
  char text[200];
  snprintf(text, sizeof text, "favor_state_to_bytes: capacity is 5, expected at least %zu bytes",
           size);
  favor_state_free(loaded);
  CHECK_OK(favor_state_from_bytes(bytes, size, &options, D, &loaded));
  CHECK_INVALID(favor_state_to_bytes(loaded, &options, D, bytes, 5, &again), text);
  snprintf(text, sizeof text, "snapshot: safetensors file has 5 bytes, expected at least 8");
  favor_state* none = NULL;
  CHECK_ERROR(favor_state_from_bytes(bytes, 5, &options, D, &none), FAVOR_IO_ERROR, text);
  CHECK(none == NULL);
  favor_options relu = options;
  relu.feature_map = "relu";
  CHECK_ERROR(favor_state_from_bytes(bytes, size, &relu, D, &none), FAVOR_IO_ERROR,
              "snapshot: feature_map is positive, expected relu");
  free(bytes);

  const char* path = "favor_c_test.safetensors";
  CHECK_OK(favor_state_save(later, &options, D, path));
  favor_state_free(loaded);
  loaded = NULL;
  CHECK_OK(favor_state_load(path, &options, D, &loaded));
  CHECK_OK(favor_state_position(loaded, &position));
  CHECK(position == L - 20);
  CHECK(remove(path) == 0);
  CHECK_ERROR(favor_state_load(path, &options, D, &none), FAVOR_IO_ERROR,
              "favor_c_test.safetensors: cannot open: No such file or directory");

  favor_state* odd = NULL;
  CHECK_OK(favor_state_create(B, G, M, E + 1, &odd));
  CHECK_INVALID(favor_state_merge(fork, odd),
                "merge: other has B, H, M, E = 1, 2, 16, 7, expected 1, 2, 16, 6 (as into)");
  favor_state_free(odd);
  CHECK_INVALID(favor_state_create(B, G, -1, E, &odd),
                "DecodeState: B, H, M, E are 1, 2, -1, 6, expected no negative size");
  favor_state_free(state);
  favor_state_free(fork);
  favor_state_free(later);
  favor_state_free(loaded);
  favor_state_free(NULL);
}

/* A stream with a window: steps, absorbed tokens and snapshots against the causal pass. */
static void test_windows(void) {
  favor_options options = make_options();
  options.window = 6;
  options.sinks = 2;
  favor_projection_spec spec;
  favor_projection_spec_init(&spec);
  spec.kind = "hadamard";
  spec.num_rows = M;
  spec.head_dim = D;
  favor_structured* structured = NULL;
  CHECK_OK(favor_structured_create(&spec, 1, &structured));
  for (int is_compact = 0; is_compact < 2; ++is_compact) {
    options.projection = is_compact ? NULL : matrix;
    options.structured = is_compact ? structured : NULL;
    CHECK_OK(favor_causal_forward(&options, tq(q), tk(k), tv(v), to(out), NULL, NULL, NULL));
    favor_state *state = NULL, *fork = NULL, *loaded = NULL;
    CHECK_OK(favor_state_create_with_window(&options, B, G, D, E, &state));
    run_steps_with(&options, state, 0, L, to(other));
    CHECK(difference(out, other, COUNT(out)) < 1e-5);
    favor_state_free(state);

    CHECK_OK(favor_state_create_with_window(&options, B, G, D, E, &state));
    CHECK_OK(favor_state_absorb(&options, part(tk(k), 0, 21), part(tv(v), 0, 21), state));
    int64_t position = 0;
    CHECK_OK(favor_state_position(state, &position));
    CHECK(position == 21);
    CHECK_OK(favor_state_copy(state, &fork));
    size_t size = 0;
    CHECK_OK(favor_state_to_bytes(state, &options, D, NULL, 0, &size));
    char* bytes = malloc(size);
    CHECK_OK(favor_state_to_bytes(state, &options, D, bytes, size, &size));
    CHECK_OK(favor_state_from_bytes(bytes, size, &options, D, &loaded));
    memset(other, 0, sizeof other);
    run_steps_with(&options, state, 21, L, to(other));
    for (int h = 0; h < H; ++h) {
      const size_t first = (size_t)(h * L + 21) * E;
      CHECK(difference(out + first, other + first, (L - 21) * E) < 1e-5);
    }
    memcpy(out, other, sizeof out);
    memset(other, 0, sizeof other);
    run_steps_with(&options, fork, 21, L, to(other));
    CHECK(difference(out, other, COUNT(out)) == 0);
    memset(other, 0, sizeof other);
    run_steps_with(&options, loaded, 21, L, to(other));
    CHECK(difference(out, other, COUNT(out)) == 0);
    favor_state_free(loaded);

    const char* path = "favor_c_window_test.safetensors";
    CHECK_OK(favor_state_save(fork, &options, D, path));
    CHECK_OK(favor_state_load(path, &options, D, &loaded));
    CHECK(remove(path) == 0);
    CHECK_OK(favor_state_position(loaded, &position));
    CHECK(position == L);
    favor_options plain = options;
    plain.window = plain.sinks = 0;
    favor_state* none = NULL;
    CHECK(favor_state_from_bytes(bytes, size, &plain, D, &none) == FAVOR_IO_ERROR);
    CHECK(none == NULL);
    free(bytes);
    favor_state_free(state);
    favor_state_free(fork);
    favor_state_free(loaded);
  }

  favor_state *near = NULL, *far = NULL;
  size_t size = 0;
  CHECK_OK(favor_state_create_with_window(&options, B, G, D, E, &near));
  CHECK_OK(favor_state_create(B, G, M, E, &far));
  CHECK_INVALID(favor_state_merge(far, near),
                "favor_state_merge: other has a window of 6 tokens, expected none");
  CHECK_INVALID(favor_state_merge(near, far),
                "favor_state_merge: into has a window of 6 tokens, expected none");
  CHECK_INVALID(favor_causal_forward(&options, tq(q), tk(k), tv(v), to(out), NULL, near, NULL),
                "favor_causal_forward: initial has a window of 6 tokens, expected none");
  CHECK_INVALID(favor_causal_forward(&options, tq(q), tk(k), tv(v), to(out), NULL, NULL, near),
                "favor_causal_forward: final_state has a window of 6 tokens, expected none");
  CHECK_INVALID(favor_state_absorb(&options, tk(k), tv(v), far),
                "favor_state_absorb: state has no window, expected one");
  CHECK_INVALID(favor_state_absorb(&options, tk(k), tv(v), NULL),
                "favor_state_absorb: state is a null pointer");
  CHECK_INVALID(favor_state_to_bytes(near, &options, D + 1, NULL, 0, &size),
                "favor_state_to_bytes: head_dim is 9, expected the state's 8");
  options.window = 5;
  CHECK_INVALID(favor_state_absorb(&options, tk(k), tv(v), near),
                "hybrid_absorb: window is 5, expected the state's 6, at least 1");
  options.window = 0;
  CHECK_INVALID(favor_state_create_with_window(&options, B, G, D, E, &far),
                "HybridState: window is 0, expected 1 or more tokens");
  CHECK_INVALID(favor_state_create_with_window(&options, B, G, D, E, NULL),
                "favor_state_create_with_window: state is a null pointer");
  favor_state_free(near);
  favor_state_free(far);
  favor_structured_free(structured);
}

static void test_null_pointers(void) {
  const favor_options options = make_options();
  favor_state* state = NULL;
  int64_t position = 0;
  size_t size = 0;
  CHECK_OK(favor_state_create(B, G, M, E, &state));
  CHECK_INVALID(favor_state_create(B, G, M, E, NULL),
                "favor_state_create: state is a null pointer");
  CHECK_INVALID(favor_state_copy(NULL, &state), "favor_state_copy: state is a null pointer");
  CHECK_INVALID(favor_state_copy(state, NULL), "favor_state_copy: copy is a null pointer");
  CHECK_INVALID(favor_state_position(NULL, &position),
                "favor_state_position: state is a null pointer");
  CHECK_INVALID(favor_state_position(state, NULL),
                "favor_state_position: position is a null pointer");
  CHECK_INVALID(favor_state_merge(NULL, state), "favor_state_merge: into is a null pointer");
  CHECK_INVALID(favor_state_merge(state, NULL), "favor_state_merge: other is a null pointer");
  CHECK_INVALID(favor_decode_step(&options, part(tq(q), 0, 1), part(tk(k), 0, 1), part(tv(v), 0, 1),
                                  NULL, part(to(out), 0, 1)),
                "favor_decode_step: state is a null pointer");
  CHECK_INVALID(favor_state_to_bytes(NULL, &options, D, NULL, 0, &size),
                "favor_state_to_bytes: state is a null pointer");
  CHECK_INVALID(favor_state_to_bytes(state, &options, D, NULL, 0, NULL),
                "favor_state_to_bytes: size is a null pointer");
  CHECK_INVALID(favor_state_from_bytes(NULL, 0, &options, D, &state),
                "favor_state_from_bytes: bytes is a null pointer");
  CHECK_INVALID(favor_state_from_bytes("x", 1, &options, D, NULL),
                "favor_state_from_bytes: state is a null pointer");
  CHECK_INVALID(favor_state_save(NULL, &options, D, "x"),
                "favor_state_save: state is a null pointer");
  CHECK_INVALID(favor_state_save(state, &options, D, NULL),
                "favor_state_save: path is a null pointer");
  CHECK_INVALID(favor_state_load(NULL, &options, D, &state),
                "favor_state_load: path is a null pointer");
  CHECK_INVALID(favor_state_load("x", &options, D, NULL),
                "favor_state_load: state is a null pointer");
  favor_state_free(state);
}

int main(void) {
  fill_problem();
  test_states();
  test_windows();
  test_null_pointers();
  return report("favor_c_state_test");
}
