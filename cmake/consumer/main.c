#include <stdio.h>

#include "favor/favor_c.h"

static float matrix[256 * 64], x[2 * 1000 * 64], out[2 * 1000 * 64];

int main(void) {
  favor_projection_spec spec;
  favor_projection_spec_init(&spec); /* 256 orthogonal rows for a head dim of 64 */
  favor_options options;
  favor_options_init(&options);
  options.projection = matrix;
  options.num_features = spec.num_rows;
  for (int i = 0; i < 2 * 1000 * 64; ++i) x[i] = 0.1f;
  const favor_tensor qkv = favor_contiguous(x, 1, 2, 1000, 64);
  const favor_tensor result = favor_contiguous(out, 1, 2, 1000, 64);
  if (favor_draw_projection(&spec, matrix) != FAVOR_OK ||
      favor_causal_forward(&options, qkv, qkv, qkv, result, NULL, NULL, NULL) != FAVOR_OK) {
    fprintf(stderr, "%s\n", favor_last_error());
    return 1;
  }
  printf("%.3f\n", out[2 * 1000 * 64 - 1]);
  return 0;
}
