# SPDX-License-Identifier: Apache-2.0
"""attention(): scaled_dot_product_attention's call, answered in linear time."""

from __future__ import annotations

from typing import Any

import torch

from performer._decode_state import DecodeState
from performer._features import (
    DEFAULT_NUM_FEATURES,
    Features,
    num_state_features,
    resolve_projection,
)
from performer._inputs import key_arguments, to_heads
from performer._library import call
from performer._method import METHODS, automatic_method


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    key_padding_mask: torch.Tensor | None = None,
    num_features: int | None = None,
    feature_map: str = "positive",
    projection: str | torch.Tensor | None = "orthogonal",
    row_norm: str = "chi",
    seed: int = 0,
    map_parameters: torch.Tensor | None = None,
    feature_eps: float | None = None,
    renormalize: bool = True,
    compatibility: str = "none",
    window: int = 0,
    sinks: int = 0,
    cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    initial_state: DecodeState | None = None,
    return_state: bool = False,
    layout: str = "BHLD",
    method: str = "favor",
) -> torch.Tensor | tuple[torch.Tensor, DecodeState]:
    """Attention by random features (FAVOR+), with the names and conventions of
    torch.nn.functional.scaled_dot_product_attention.

    query [B, H, L, D], key [B, G, S, D], value [B, G, S, E] -> [B, H, L, E]. Two dimensions,
    [L, D], three, [B, L, D], and more than four, [*, H, L, D], are taken as well. Differentiable
    once in query, key and value. A row with no key to attend to gives zeros.

    attn_mask: a mask of keys, broadcast to [B, H, 1, S]: bool, True = takes part, or float, added
        to q.k. Masks of pairs of query and key are refused.
    dropout_p: 0 only; linear attention forms no matrix from which entries could be dropped.
    is_causal: keys j <= i only, aligned at the top left when L != S. May be joined with masks.
    scale: multiplies q.k; by default 1/sqrt(D) for the maps that estimate softmax, 1 for others.
    enable_gqa: H may be a multiple of G.
    key_padding_mask: [B, S] bool, True = ignore this key, as in torch.nn.MultiheadAttention.
    num_features: M, 256 by default, features kept of the keys.
    feature_map: "positive" (FAVOR+), "hyperbolic", "optimal_positive" (FAVOR++),
        "favor_sharp_diagonal", "favor_sharp" (FAVOR#), "trig", or a generalised kernel: "relu",
        "relu2", "elu1", "exp", "sigmoid", "softplus", "gelu", "abs", "tanh", "cos", "sin",
        "identity".
    projection: how the random matrix is drawn ("orthogonal", "iid", "hadamard", "givens",
        "simplex"), or the matrix itself, [R, D] or [G, R, D], or compact (draw_projection); None,
        with a generalised kernel: features of the queries and keys themselves.
    row_norm, seed: of a matrix that is drawn; see draw_projection. The same seed gives the same
        matrix everywhere, and torch's generators are left alone.
    map_parameters: of a fitted map (fit_feature_map); causal calls need them, others fit the map
        to the tokens of the call.
    feature_eps: added to each feature; by default 1e-3 for relu, else 0.
    renormalize: divide each output by the sum of its weights.
    compatibility: "official" reproduces the numbers of the paper's published code.
    window: w > 0 scores the keys of the same and the neighbouring blocks of w tokens exactly.
    sinks: the first keys (and the last ones, unless causal) that are scored exactly for all.
    cu_seqlens: offsets [N + 1] of packed sequences, or a pair of them for queries and keys.
    initial_state, return_state: a causal call may continue a stream and return (output, state).
    layout: "BHLD", or "BLHD" for [B, L, H, D] tensors.
    method: "favor", or "exact" for softmax attention, in quadratic time, to which all that is said
        of features does not apply; with a window, keys outside it are left out. "auto" takes the
        faster of the two for the call's lengths (resolve_method), without gradients or states; the
        logger "performer" names its first choices.
    """
    if dropout_p != 0:
        raise ValueError(
            f"attention: dropout_p is {dropout_p}, expected 0 (linear attention forms no matrix "
            "from which entries could be dropped)"
        )
    if method not in METHODS:
        words = " | ".join(map(repr, METHODS))
        raise ValueError(f"attention: method is {method!r}, expected {words}")
    q, k, v, restore = to_heads(query, key, value, layout, enable_gqa)
    shape = q.shape if layout == "BLHD" else query.shape
    keys = key_arguments(attn_mask, key_padding_mask, cu_seqlens, shape, k)
    has_state = initial_state is not None or return_state
    if has_state and method != "favor":
        raise ValueError(f"attention: method is {method!r}, expected 'favor' (a state is used)")
    if method == "auto":
        features_kept = DEFAULT_NUM_FEATURES if num_features is None else num_features
        if isinstance(projection, torch.Tensor):
            features_kept = num_state_features(feature_map, projection.shape[-2])
        method = automatic_method(q, k, v, feature_map, features_kept, window, is_causal)
    if method == "exact":
        keys.update(scale=scale, window=window, sinks=sinks)
        return restore(call(torch.ops.performer.exact_attention, q, k, v, is_causal, **keys))
    features = Features(
        projection=resolve_projection(
            projection, feature_map, num_features, q.shape[-1], row_norm, seed
        ),
        map_parameters=map_parameters,
        feature_map=feature_map,
        scale=scale,
        feature_eps=feature_eps,
        compatibility=compatibility,
        renormalize=renormalize,
        window=window,
        sinks=sinks,
    )
    if has_state:
        out, state = _continue(initial_state, features, is_causal, q, k, v, keys)
        return (restore(out), state) if return_state else restore(out)
    operator = torch.ops.performer.attention
    return restore(call(operator, q, k, v, is_causal, **keys, **features.as_arguments()))


def _continue(
    initial_state: DecodeState | None,
    features: Features,
    is_causal: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: dict[str, Any],
) -> tuple[torch.Tensor, DecodeState]:
    if not is_causal:
        raise ValueError("attention: is_causal is False, expected True (states are causal)")
    state = DecodeState._of(features) if initial_state is None else initial_state.copy()
    field = state._features.difference(features)
    if field is not None:
        raise ValueError(f"attention: {field} differs from initial_state's, expected the same")
    return state._advance("attention", q, k, v, keys), state


def fit_feature_map(
    query: torch.Tensor,
    key: torch.Tensor,
    feature_map: str,
    *,
    key_padding_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Parameters of a fitted map, [G, n], for the tokens of query [B, H, L, D] and key
    [B, G, S, D]: averages over batch items, to be given to later calls as map_parameters.

    feature_map: "optimal_positive", "favor_sharp_diagonal" or "favor_sharp".
    """
    # The statistics do not depend on the matrix; one row of zeros stands for it.
    matrix = query.new_zeros(1, query.shape[-1])
    return call(
        torch.ops.performer.fit_feature_map,
        query.detach(),
        key.detach(),
        projection=matrix,
        feature_map=feature_map,
        key_padding_mask=key_padding_mask,
        scale=scale,
    )
