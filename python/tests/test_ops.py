# SPDX-License-Identifier: Apache-2.0
"""The operators as PyTorch sees them: registration, meta kernels, functional decoding."""

from __future__ import annotations

import pytest
import torch
from cases import B, D, E, H, L, M, assert_near, inputs, matrix, padding

import performer

ops = torch.ops.performer
MAPS = ["positive", "relu"]


def arguments(**changes: object) -> dict[str, object]:
    return {"projection": matrix(H), "key_padding_mask": padding(), **changes}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
def test_opcheck_attention(feature_map, is_causal):
    tensors = [x.requires_grad_() for x in inputs()]
    named = arguments(feature_map=feature_map, key_log_weight=torch.zeros(B, H, L))
    torch.library.opcheck(ops.attention.default, (*tensors, is_causal), named)


def test_opcheck_grouped_heads():
    q, k, v = (x.requires_grad_() for x in inputs(heads=2))
    torch.library.opcheck(ops.attention.default, (q, k, v, True), {"projection": matrix(2)})


@pytest.mark.parametrize("direction", ["bidirectional", "causal"])
@pytest.mark.parametrize("feature_map", MAPS)
def test_opcheck_passes(feature_map, direction):
    q, k, v = inputs(torch.float64)
    offsets = torch.tensor([0, 3, 3, L])
    named = arguments(feature_map=feature_map, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
    forward = getattr(ops, f"{direction}_forward").default
    torch.library.opcheck(forward, (q, k, v), named)
    saved = forward(q, k, v, **named)
    backward = getattr(ops, f"{direction}_backward").default
    torch.library.opcheck(backward, (torch.ones_like(saved[0]), q, k, v, *saved), named)


@pytest.mark.parametrize("feature_map", ["optimal_positive", "favor_sharp"])
def test_opcheck_fit_feature_map(feature_map):
    q, k, _ = inputs(torch.float64, heads=2)
    named = {"projection": matrix(), "feature_map": feature_map}
    torch.library.opcheck(ops.fit_feature_map.default, (q, k), named)


def test_opcheck_draw_projection():
    torch.library.opcheck(ops.draw_projection.default, (8, 4))


@pytest.mark.parametrize("feature_map", MAPS)
def test_decode_step_is_functional_and_equals_the_causal_pass(feature_map):
    q, k, v = inputs(heads=2)
    named = {"projection": matrix(2), "feature_map": feature_map}
    whole = ops.attention(q, k, v, True, **named)
    state = [torch.zeros(B, 2, M), torch.zeros(B, 2, M, E), torch.zeros(B, 2, M)]
    for t in range(L):
        given = (*(x[:, :, t : t + 1] for x in (q, k, v)), *state, t)
        before = [x.clone() for x in state]
        out, *after = ops.decode_step(*given, **named)
        assert all(torch.equal(a, b) for a, b in zip(before, state))
        assert_near(out, whole[:, :, t : t + 1])
        if t == 2:
            torch.library.opcheck(ops.decode_step.default, given, named)
        state = after


@pytest.mark.parametrize(
    "kind, cosine", [("orthogonal", 0), ("hadamard", 0), ("givens", 0), ("simplex", -1 / 7)]
)
def test_draw_projection_repeats_and_couples_its_rows(kind, cosine):
    w = performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=3)
    assert torch.equal(w, performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=3))
    assert not torch.equal(w, performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=4))
    expected = 8 * (cosine + (1 - cosine) * torch.eye(8))
    assert_near(w @ w.T, expected, 1e-4)


def test_draw_projection_uses_every_argument():
    plain = performer.draw_projection(D, D)
    for change in (
        {"kind": "iid"},
        {"row_norm": "sqrt_d"},
        {"layer": 1},
        {"head": 1},
        {"redraw": 1},
    ):
        assert not torch.equal(plain, performer.draw_projection(D, D, **change)), change


def test_exports_are_pinned():
    assert performer.__all__ == [
        "DecodeState",
        "FavorAttention",
        "attention",
        "draw_projection",
        "fit_feature_map",
        "library_path",
        "resolve_method",
    ]
    assert performer.library_path().is_file()
