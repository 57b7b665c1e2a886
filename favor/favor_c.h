/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for C, and for every language that can call C. Names, shapes and defaults are those
 * of the C++ headers: attention.h, exact.h, projection.h, state.h, snapshot.h. Dims: B batch, H
 * query heads, G key heads (H is a multiple of G), L queries, S keys, D head dim, E value dim, M
 * features.
 *
 * Every function that can fail returns a status; favor_last_error() then says what was wrong. A
 * failed call has written nothing to its outputs. Functions may be called from any number of
 * threads, but not with one handle while another thread changes it. */
#ifndef FAVOR_FAVOR_C_H_
#define FAVOR_FAVOR_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum favor_status {
  FAVOR_OK = 0,
  FAVOR_INVALID_ARGUMENT = 1, /* the call is wrong */
  FAVOR_OUT_OF_MEMORY = 2,
  FAVOR_IO_ERROR = 3,      /* a file, or the bytes of a snapshot, cannot be used */
  FAVOR_INTERNAL_ERROR = 4 /* a mistake of this library */
} favor_status;

/* What the last failed call of this thread reported; "" before the first. Valid until this thread's
 * next failure. */
const char* favor_last_error(void);

/* "0.1.0", and the instruction set in use, such as "avx3" ("" and a last error if FAVOR_ISA is
 * wrong). */
const char* favor_version(void);
const char* favor_isa(void);

/* Threads of the built-in pool; results do not depend on them. */
favor_status favor_num_threads(int* threads);
favor_status favor_set_num_threads(int threads);

/* ---- tensors and options ------------------------------------------------------------------- */

typedef enum favor_dtype {
  FAVOR_FLOAT32 = 0,
  FAVOR_BFLOAT16 = 1, /* the 16-bit types: where a function says so */
  FAVOR_FLOAT16 = 2
} favor_dtype;

/* A [B, H, L, D] view of the caller's memory. Strides are in elements, the last one is 1. Inputs
 * are not written through it. */
typedef struct favor_tensor {
  void* data;
  int dtype; /* a favor_dtype */
  int64_t sizes[4];
  int64_t strides[4];
} favor_tensor;

/* A row-major float32 tensor; set its dtype for another type. */
favor_tensor favor_contiguous(const void* data, int64_t b, int64_t h, int64_t l, int64_t d);

/* Random matrices in the compact form that fast transforms apply to tokens. */
typedef struct favor_structured favor_structured;

/* Options of attention by random features. Set them with favor_options_init, then change what
 * should differ. `size` tells a library which fields its caller knows. */
typedef struct favor_options {
  size_t size;
  const char* feature_map;        /* default "positive" */
  double scale;                   /* of q.k; NaN (default): 1/sqrt(D) for maps of softmax, else 1 */
  double feature_eps;             /* added to features; NaN (default): the map's default */
  const char* compatibility;      /* "none" (default) or "official" */
  int renormalize;                /* default 1; 0: plain sums over keys */
  const float* projection;        /* [P, R, D] rows of the random matrix; null: none */
  int64_t num_projections;        /* P: 1 (default) or G */
  int64_t num_features;           /* M */
  const float* map_parameters;    /* [Q, favor_num_map_parameters]; null: fitted per call */
  int64_t num_map_parameter_sets; /* Q: 1 (default) or G */
  const uint8_t* key_padding_mask; /* [B, S], nonzero = ignore this key; null: none */
  const float* key_log_weight;     /* [B, W, S]: multiplies a key's weight by exp(.); null: none */
  int64_t num_key_log_weights;     /* W: 1 (default) or G */
  int64_t window;                  /* tokens of an exactly scored block; 0 (default): none */
  int64_t sinks;                   /* first keys that every query scores exactly */
  const int64_t* cu_seqlens_q;     /* [num_segments + 1] ascending offsets; null: one segment */
  const int64_t* cu_seqlens_k;
  int64_t num_segments;
  const favor_structured* structured; /* instead of `projection`: P matrices; null: none */
} favor_options;

void favor_options_init(favor_options* options);

/* Options of exact attention; fields as above. */
typedef struct favor_exact_options {
  size_t size;
  double scale; /* NaN (default): 1/sqrt(D) */
  int is_causal;
  const uint8_t* key_padding_mask;
  const float* key_log_weight;
  int64_t num_key_log_weights;
  int64_t window;
  int64_t sinks;
  const int64_t* cu_seqlens_q;
  const int64_t* cu_seqlens_k;
  int64_t num_segments;
} favor_exact_options;

void favor_exact_options_init(favor_exact_options* options);

/* ---- random matrices and fitted maps ------------------------------------------------------- */

/* Which matrix to draw: the same values give the same bits everywhere. */
typedef struct favor_projection_spec {
  size_t size;
  const char* kind;     /* default "orthogonal" */
  const char* row_norm; /* "chi" (default) or "sqrt_d" */
  int64_t num_rows;     /* default 256 */
  int64_t head_dim;     /* D, default 64 */
  uint64_t seed;
  uint32_t layer;
  uint32_t head;
  uint32_t redraw;
} favor_projection_spec;

void favor_projection_spec_init(favor_projection_spec* spec);

/* Writes [num_rows, head_dim] floats. */
favor_status favor_draw_projection(const favor_projection_spec* spec, float* rows);

/* Draws the matrices of heads spec.head to spec.head + num_matrices - 1, those that
 * favor_draw_projection gives, as one handle that the caller frees. Kind "hadamard" only. */
favor_status favor_structured_create(const favor_projection_spec* spec, int64_t num_matrices,
                                     favor_structured** structured);
void favor_structured_free(favor_structured* structured);

/* Rows of the matrix behind M features of a map. */
favor_status favor_num_projection_rows(const char* feature_map, int64_t num_features,
                                       int64_t* rows);

/* Numbers that describe one key head's fitted map; 0 for maps that are not fitted. */
favor_status favor_num_map_parameters(const char* feature_map, int64_t head_dim, int64_t* numbers);

/* Fits a map to all tokens of q and k, for later calls: [G, favor_num_map_parameters]. */
favor_status favor_fit_feature_map(const favor_options* options, favor_tensor q, favor_tensor k,
                                   float* parameters);

/* ---- attention ----------------------------------------------------------------------------- */

/* What a forward pass leaves for its backward pass. */
typedef struct favor_saved favor_saved;
void favor_saved_free(favor_saved* saved);

/* The state of a causal stream, with or without a window. */
typedef struct favor_state favor_state;

/* q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], out [B, H, L, E], all of one dtype. `saved` may
 * be null; else it receives a handle that the caller frees. */
favor_status favor_bidirectional_forward(const favor_options* options, favor_tensor q,
                                         favor_tensor k, favor_tensor v, favor_tensor out,
                                         favor_saved** saved);

/* Gradients; `out` and `saved` are the forward pass's, with the same options. */
favor_status favor_bidirectional_backward(const favor_options* options, favor_tensor q,
                                          favor_tensor k, favor_tensor v, favor_tensor out,
                                          favor_tensor dout, const favor_saved* saved,
                                          favor_tensor dq, favor_tensor dk, favor_tensor dv);

/* `initial` continues a stream, `final_state` becomes the state after the last key; both may be
 * null, and they may be one state, without a window. */
favor_status favor_causal_forward(const favor_options* options, favor_tensor q, favor_tensor k,
                                  favor_tensor v, favor_tensor out, favor_saved** saved,
                                  const favor_state* initial, favor_state* final_state);

favor_status favor_causal_backward(const favor_options* options, favor_tensor q, favor_tensor k,
                                   favor_tensor v, favor_tensor out, favor_tensor dout,
                                   const favor_saved* saved, favor_tensor dq, favor_tensor dk,
                                   favor_tensor dv);

/* Exact softmax attention. `normalizer` [B, H, L] is what the backward pass needs; it may be null
 * in the forward pass. */
favor_status favor_exact_forward(const favor_exact_options* options, favor_tensor q, favor_tensor k,
                                 favor_tensor v, favor_tensor out, float* normalizer);
favor_status favor_exact_backward(const favor_exact_options* options, favor_tensor q,
                                  favor_tensor k, favor_tensor v, favor_tensor out,
                                  favor_tensor dout, const float* normalizer, favor_tensor dq,
                                  favor_tensor dk, favor_tensor dv);

/* ---- decoding states ----------------------------------------------------------------------- */

/* The empty state of B items and G key heads. */
favor_status favor_state_create(int64_t batch, int64_t key_heads, int64_t num_features,
                                int64_t value_dim, favor_state** state);
/* The empty state of a stream with options->window and ->sinks. */
favor_status favor_state_create_with_window(const favor_options* options, int64_t batch,
                                            int64_t key_heads, int64_t head_dim, int64_t value_dim,
                                            favor_state** state);
favor_status favor_state_copy(const favor_state* state, favor_state** copy);
void favor_state_free(favor_state* state);

/* Tokens seen so far, masked ones included. */
favor_status favor_state_position(const favor_state* state, int64_t* position);

/* Adds the tokens of `other` to those of `into`, both without a window. */
favor_status favor_state_merge(favor_state* into, const favor_state* other);

/* All of one dtype, float32 with a window: absorbs k, v [B, G, 1, D|E], then answers q [B, H, 1, D]
 * with out [B, H, 1, E]. */
favor_status favor_decode_step(const favor_options* options, favor_tensor q, favor_tensor k,
                               favor_tensor v, favor_state* state, favor_tensor out);

/* Adds tokens k, v [B, G, S, D|E] to a state with a window, without answering queries: after it,
 * steps go on where favor_causal_forward over the same tokens ends. */
favor_status favor_state_absorb(const favor_options* options, favor_tensor k, favor_tensor v,
                                favor_state* state);

/* The snapshot of a state, in memory and as a file. A snapshot is refused under options with
 * another map or matrix than it was made with. `size` receives the snapshot's size; nothing is
 * written if `buffer` is null, and a `capacity` below that size is an error. */
favor_status favor_state_to_bytes(const favor_state* state, const favor_options* options,
                                  int64_t head_dim, void* buffer, size_t capacity, size_t* size);
favor_status favor_state_from_bytes(const void* bytes, size_t size, const favor_options* options,
                                    int64_t head_dim, favor_state** state);
favor_status favor_state_save(const favor_state* state, const favor_options* options,
                              int64_t head_dim, const char* path);
favor_status favor_state_load(const char* path, const favor_options* options, int64_t head_dim,
                              favor_state** state);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FAVOR_FAVOR_C_H_ */
