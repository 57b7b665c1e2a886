# SPDX-License-Identifier: Apache-2.0
"""FAVOR+ in JAX as its first authors formulated it, written from the published formulas: features
stabilised by one maximum per query row and one over all keys of a head, plus an epsilon; causal
sums by a scan over the tokens whose backward pass walks the sums back by subtraction."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

SOFTMAX_EPS, RELU_EPS = 1e-6, 1e-3


def softmax_features(x: jax.Array, w: jax.Array, is_query: bool) -> jax.Array:
    """[B, L, H, D] -> [B, L, H, M]: M^-1/2 (exp(u - |x|^2 / 2 - max) + eps) with u = W x."""
    x = x * x.shape[-1] ** -0.25
    u = jnp.einsum("blhd,md->blhm", x, w)
    half_square = jnp.sum(x * x, axis=-1, keepdims=True) / 2
    largest = jnp.max(u, axis=-1 if is_query else (-3, -1), keepdims=True)
    return w.shape[0] ** -0.5 * (jnp.exp(u - half_square - largest) + SOFTMAX_EPS)


def relu_features(x: jax.Array, w: jax.Array, is_query: bool) -> jax.Array:
    return jax.nn.relu(jnp.einsum("blhd,md->blhm", x, w)) + RELU_EPS


@jax.custom_vjp
def causal_sums(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """out_i = q_i . sum_{j <= i} k_j v_j^T, token by token: q, k [L, B, H, M], v [L, B, H, E]."""
    return _causal_sums_forward(q, k, v)[0]


def _causal_sums_forward(q, k, v):
    def step(state, row):
        q_i, k_i, v_i = row
        state = state + jnp.einsum("bhm,bhe->bhme", k_i, v_i)
        return state, jnp.einsum("bhme,bhm->bhe", state, q_i)

    state = jnp.zeros((*k.shape[1:], v.shape[-1]), k.dtype)
    state, out = jax.lax.scan(step, state, (q, k, v))
    return out, (q, k, v, state)


def _causal_sums_backward(saved, dout):
    q, k, v, state = saved

    def step(carry, row):
        state, dstate = carry
        q_i, k_i, v_i, dout_i = row
        dq_i = jnp.einsum("bhme,bhe->bhm", state, dout_i)
        dstate = dstate + jnp.einsum("bhm,bhe->bhme", q_i, dout_i)
        dk_i = jnp.einsum("bhme,bhe->bhm", dstate, v_i)
        dv_i = jnp.einsum("bhme,bhm->bhe", dstate, k_i)
        state = state - jnp.einsum("bhm,bhe->bhme", k_i, v_i)
        return (state, dstate), (dq_i, dk_i, dv_i)

    carry = (state, jnp.zeros_like(state))
    return jax.lax.scan(step, carry, (q, k, v, dout), reverse=True)[1]


causal_sums.defvjp(_causal_sums_forward, _causal_sums_backward)


def attention(
    w, feature_map: str, causal: bool
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """q, k, v [B, L, H, D] -> [B, L, H, D] with the random matrix w [M, D]."""
    w = jnp.asarray(w)
    features = softmax_features if feature_map == "positive" else relu_features

    def attend(q, k, v):
        q, k = features(q, w, True), features(k, w, False)
        if causal:
            # The values and a one beside them, so that one scan gives numerators and denominators.
            ones = jnp.ones((*v.shape[:-1], 1), v.dtype)
            rows = [jnp.moveaxis(x, 1, 0) for x in (q, k, jnp.concatenate([v, ones], axis=-1))]
            sums = jnp.moveaxis(causal_sums(*rows), 0, 1)
            return sums[..., :-1] / sums[..., -1:]
        state = jnp.einsum("blhm,blhe->bhme", k, v)
        numerator = jnp.einsum("blhm,bhme->blhe", q, state)
        denominator = jnp.einsum("blhm,bhm->blh", q, jnp.sum(k, axis=1))
        return numerator / denominator[..., None]

    return attend
