/* SPDX-License-Identifier: Apache-2.0
 *
 * What the C tests share: checks that count, and one problem. */
#ifndef FAVOR_FAVOR_C_TESTING_H_
#define FAVOR_FAVOR_C_TESTING_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "favor/favor_c.h"

static int num_checks = 0, num_failed = 0;

static void check(int condition, const char* what, int line) {
  ++num_checks;
  if (condition) return;
  ++num_failed;
  printf("line %d: %s; last error: %s\n", line, what, favor_last_error());
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define CHECK_OK(call) check((call) == FAVOR_OK, #call, __LINE__)

static void check_error(favor_status status, favor_status wanted, const char* text, int line) {
  ++num_checks;
  if (status == wanted && strcmp(favor_last_error(), text) == 0) return;
  ++num_failed;
  printf("line %d: status %d, '%s'\n  expected %d, '%s'\n", line, (int)status, favor_last_error(),
         (int)wanted, text);
}
#define CHECK_ERROR(call, status, text) check_error((call), (status), (text), __LINE__)
#define CHECK_INVALID(call, text) check_error((call), FAVOR_INVALID_ARGUMENT, (text), __LINE__)

enum { B = 1, H = 4, G = 2, L = 40, D = 8, E = 6, M = 16 };

static float q[B * H * L * D], k[B * G * L * D], v[B * G * L * E], dout[B * H * L * E];
static float out[B * H * L * E], other[B * H * L * E];
static float matrix[M * D];

static favor_tensor tq(const float* x) {
  return favor_contiguous(x, B, H, L, D);
}
static favor_tensor tk(const float* x) {
  return favor_contiguous(x, B, G, L, D);
}
static favor_tensor tv(const float* x) {
  return favor_contiguous(x, B, G, L, E);
}
static favor_tensor to(const float* x) {
  return favor_contiguous(x, B, H, L, E);
}

/* Tokens [begin, end) of a tensor. */
static favor_tensor part(favor_tensor all, int64_t begin, int64_t end) {
  all.data = (float*)all.data + begin * all.strides[2];
  all.sizes[2] = end - begin;
  return all;
}

static float noise(void) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 16777216.0f - 0.5f;
}

static void fill(float* x, size_t count) {
  for (size_t i = 0; i < count; ++i) x[i] = noise();
}
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static double difference(const float* a, const float* b, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const double d = fabs((double)a[i] - (double)b[i]);
    if (!(d <= largest)) largest = d;
  }
  return largest;
}

static favor_options make_options(void) {
  favor_options options;
  favor_options_init(&options);
  options.projection = matrix;
  options.num_features = M;
  return options;
}

static favor_status run_causal(void) {
  const favor_options options = make_options();
  return favor_causal_forward(&options, tq(q), tk(k), tv(v), to(out), NULL, NULL, NULL);
}

static void fill_problem(void) {
  fill(q, COUNT(q));
  fill(k, COUNT(k));
  fill(v, COUNT(v));
  fill(dout, COUNT(dout));
  favor_projection_spec spec;
  favor_projection_spec_init(&spec);
  spec.num_rows = M;
  spec.head_dim = D;
  spec.seed = 7;
  CHECK_OK(favor_draw_projection(&spec, matrix));
}

static int report(const char* name) {
  printf("%s: %d checks, %d failed\n", name, num_checks, num_failed);
  return num_failed == 0 ? 0 : 1;
}

#endif /* FAVOR_FAVOR_C_TESTING_H_ */
