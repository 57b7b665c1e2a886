# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: the type of the exception and its whole text."""

from __future__ import annotations

import pytest
import torch
from cases import B, D, H, L, M, inputs, matrix

import performer

Q, K, V = inputs()
PAIRS = torch.ones(L, L, dtype=torch.bool)

CASES = [
    (
        {"dropout_p": 0.1},
        ValueError,
        "attention: dropout_p is 0.1, expected 0 (linear attention forms no matrix from which "
        "entries could be dropped)",
    ),
    (
        {"key": K[:, :2], "value": V[:, :2]},
        ValueError,
        "attention: key has 2 heads, expected 4 (as query; enable_gqa=True lets query heads share "
        "key heads)",
    ),
    (
        {"key": K[:, :3], "value": V[:, :3], "enable_gqa": True},
        ValueError,
        "bidirectional_forward: k has shape [2, 3, 7, 4], expected a number of heads that divides "
        "q's 4",
    ),
    ({"query": [1]}, TypeError, "attention: query is list, expected a torch.Tensor"),
    (
        {"query": Q[0]},
        ValueError,
        "attention: query, key, value have 3, 4, 4 dimensions, expected the same number, 2 or more",
    ),
    ({"layout": "LBHD"}, ValueError, "attention: layout is 'LBHD', expected 'BHLD' | 'BLHD'"),
    (
        {"query": Q[0], "key": K[0], "value": V[0], "layout": "BLHD"},
        ValueError,
        "attention: query has 3 dimensions, expected 4 (layout is 'BLHD')",
    ),
    (
        {"attn_mask": PAIRS},
        ValueError,
        "attention: attn_mask has shape [7, 7], expected one that broadcasts to [2, 4, 1, 7] "
        "(linear attention can weigh keys, not pairs of query and key)",
    ),
    (
        {"attn_mask": PAIRS[:1, :5]},
        ValueError,
        "attention: attn_mask has shape [1, 5], expected one that broadcasts to [2, 4, 1, 7]",
    ),
    (
        {"attn_mask": PAIRS[:1].expand(1, 1, 1, 1, L)},
        ValueError,
        "attention: attn_mask has shape [1, 1, 1, 1, 7], expected one that broadcasts to "
        "[2, 4, 1, 7]",
    ),
    (
        {"attn_mask": torch.zeros(L, requires_grad=True)},
        ValueError,
        "attention: attn_mask requires a gradient, expected none (weights of keys carry none; pass "
        "attn_mask.detach())",
    ),
    (
        {"attn_mask": torch.zeros(L, dtype=torch.int64)},
        TypeError,
        "attention: attn_mask has dtype torch.int64, expected bool or floating",
    ),
    ({"attn_mask": [True]}, TypeError, "attention: attn_mask is list, expected a torch.Tensor"),
    (
        {"attn_mask": torch.full((L,), torch.inf)},
        ValueError,
        "bidirectional_forward: key_log_weight has the element inf, expected finite numbers or "
        "-inf",
    ),
    (
        {"key_padding_mask": torch.zeros(B, L)},
        ValueError,
        "bidirectional_forward: key_padding_mask is Float of shape [2, 7], expected Bool of shape "
        "[2, 7] on the CPU (true = ignore this key)",
    ),
    (
        {"key": K.double()},
        TypeError,
        "bidirectional_forward: k has dtype Double, expected Float (the dtype of q)",
    ),
    (
        {"query": Q.int(), "key": K.int(), "value": V.int(), "projection": matrix()},
        TypeError,
        "bidirectional_forward: q has dtype Int, expected Float, BFloat16, Half or Double",
    ),
    (
        {"projection": "orthagonal"},
        ValueError,
        "projection_kind_from_string: projection is 'orthagonal', expected iid | orthogonal | "
        "hadamard | givens | simplex",
    ),
    (
        {"projection": 3, "num_features": 3},
        TypeError,
        "attention: projection is int, expected a name, a torch.Tensor or None",
    ),
    (
        {"projection": matrix(), "num_features": 8},
        ValueError,
        "attention: num_features is 8, expected None or what the 6 rows of projection make (it is "
        "given)",
    ),
    (
        {"projection": matrix(3)},
        ValueError,
        "bidirectional_forward: projection has shape [3, 6, 4], expected 1 or 4 matrices (key "
        "heads)",
    ),
    (
        {"projection": matrix().requires_grad_()},
        ValueError,
        "attention: projection requires a gradient, expected none (random matrices are fixed; pass "
        "projection.detach())",
    ),
    (
        {"feature_map": "trig", "num_features": 5},
        ValueError,
        "num_projection_rows: num_features is 5, expected an even number (feature_map trig makes "
        "two of each row)",
    ),
    ({"num_features": 0}, ValueError, "draw_projection: num_features is 0, expected at least 1"),
    (
        {"cu_seqlens": torch.tensor([0, 3])},
        ValueError,
        "bidirectional_forward: the last offset of cu_seqlens_q is 3, expected 7 (the length)",
    ),
    (
        {"compatibility": "paper"},
        ValueError,
        "compatibility_from_string: compatibility is 'paper', expected none | official",
    ),
    (
        {"compatibility": "official", "is_causal": True},
        ValueError,
        "causal_forward: compatibility is official, expected none (its stabiliser is the maximum "
        "over later keys too)",
    ),
    ({"scale": -1.0}, ValueError, None),
]


@pytest.mark.parametrize(
    "change, kind, text", CASES, ids=[" ".join(change) for change, *_ in CASES]
)
def test_wrong_arguments(change, kind, text):
    with pytest.raises(kind) as caught:
        performer.attention(**{"query": Q, "key": K, "value": V, "num_features": None, **change})
    if text is None:
        assert f"{next(iter(change))} is -1, expected" in str(caught.value)
    else:
        assert str(caught.value) == text


def test_unknown_maps_are_answered_by_the_list_of_maps():
    with pytest.raises(
        ValueError, match=r"'cosine', expected positive \| hyperbolic \| .*identity"
    ):
        performer.attention(Q, K, V, feature_map="cosine")


def test_gradients_of_gradients_are_refused():
    q = Q.double().requires_grad_()
    out = performer.attention(q, K.double(), V.double(), is_causal=True)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="performer::causal_backward"):
        first.sum().backward()


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError) as caught:
        torch.ops.performer.draw_projection(M, D, "iid", "chi", "seed")
    assert not isinstance(caught.value, ValueError)
    assert H == 4
