# SPDX-License-Identifier: Apache-2.0
"""attention(): values against features written out in float64, and an effect of every argument."""

from __future__ import annotations

import pytest
import torch
from cases import B, D, H, L, M, assert_far, assert_near, brute_force, inputs, matrix, padding

import performer

MAPS = ["positive", "relu"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_equals_brute_force(dtype, bound, feature_map, is_causal, masked):
    q, k, v = inputs(dtype)
    named = {"is_causal": is_causal, "feature_map": feature_map}
    if masked:
        named["key_padding_mask"] = padding()
    out = performer.attention(q, k, v, projection=matrix(H), **named)
    assert out.dtype == dtype
    assert_near(out, brute_force(q, k, v, matrix(H), **named), bound)


@pytest.mark.parametrize("key_scale", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
def test_gradcheck(feature_map, is_causal, key_scale):
    tensors = [x[:, :2].requires_grad_() for x in inputs(torch.float64, key_scale)]
    named = {"key_padding_mask": padding(), "is_causal": is_causal, "feature_map": feature_map}

    def run(q, k, v):
        return performer.attention(q, k, v, projection=matrix(2), **named)

    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize(
    "feature_map", ["hyperbolic", "favor_sharp", "trig", "elu1", "exp", "softplus", "identity"]
)
def test_gradcheck_of_other_maps(feature_map):
    q, k, v = (x[:1, :2].requires_grad_() for x in inputs(torch.float64, heads=1))
    statistics = None
    if feature_map == "favor_sharp":
        statistics = performer.fit_feature_map(q, k, feature_map)

    def run(q, k, v):
        return performer.attention(
            q,
            k,
            v,
            is_causal=True,
            enable_gqa=True,
            projection=matrix(),
            feature_map=feature_map,
            map_parameters=statistics,
            renormalize=feature_map != "identity",
        )

    assert torch.autograd.gradcheck(run, (q, k, v))


CHANGES = [
    {"is_causal": True},
    {"scale": 0.1},
    {"key_padding_mask": padding()},
    {"num_features": 4},
    {"seed": 1},
    {"row_norm": "sqrt_d"},
    {"feature_eps": 0.1},
    {"renormalize": False},
    {"compatibility": "official", "feature_eps": 0.1},
    {"cu_seqlens": torch.tensor([0, 3, L])},
    *({"projection": kind} for kind in ("iid", "hadamard", "givens", "simplex")),
    *({"feature_map": name} for name in ("hyperbolic", "optimal_positive", "favor_sharp_diagonal")),
    *({"feature_map": name} for name in ("favor_sharp", "trig", "relu", "relu2", "elu1", "exp")),
    *({"feature_map": name} for name in ("sigmoid", "softplus", "gelu", "abs", "tanh", "cos")),
    *({"feature_map": name} for name in ("sin", "identity")),
    {"feature_map": "elu1", "projection": None, "num_features": None},
    {"feature_map": "optimal_positive", "map_parameters": torch.tensor([-2.0])},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(map(str, change.items())))
def test_every_argument_has_an_effect(change):
    q, k, v = inputs()
    defaults = {"num_features": 8, "seed": 0}
    plain = performer.attention(q, k, v, **defaults)
    assert_far(performer.attention(q, k, v, **{**defaults, **change}), plain)


def test_names_of_matrices_stand_for_drawn_ones():
    q, k, v = inputs()
    for kind in ("orthogonal", "iid", "hadamard", "givens", "simplex"):
        compact = kind == "hadamard"
        w = performer.draw_projection(M, D, kind=kind, row_norm="sqrt_d", seed=5, compact=compact)
        named = performer.attention(
            q, k, v, projection=kind, num_features=M, row_norm="sqrt_d", seed=5
        )
        assert torch.equal(named, performer.attention(q, k, v, projection=w))
    w = performer.draw_projection(256, D)
    default = performer.attention(q, k, v)
    assert torch.equal(default, performer.attention(q, k, v, projection=w))
    # Two features of each row.
    half = performer.draw_projection(3, D)
    named = performer.attention(q, k, v, num_features=6, feature_map="trig")
    assert torch.equal(named, performer.attention(q, k, v, projection=half, feature_map="trig"))


def test_torch_generators_are_left_alone():
    q, k, v = inputs()
    before = torch.get_rng_state()
    performer.attention(q, k, v, seed=91)
    performer.FavorAttention(D, seed=92).redraw()
    assert torch.equal(before, torch.get_rng_state())


def test_packed_segments_do_not_see_each_other():
    q, k, v = (x[:1] for x in inputs())
    offsets = torch.tensor([0, 3, 3, L], dtype=torch.int32)
    for is_causal in (False, True):
        packed = performer.attention(q, k, v, is_causal=is_causal, cu_seqlens=offsets)
        parts = [
            performer.attention(*(x[:, :, a:b] for x in (q, k, v)), is_causal=is_causal)
            for a, b in ((0, 3), (3, L))
        ]
        assert_near(packed, torch.cat(parts, 2))
    crossed = performer.attention(q, k, v, cu_seqlens=(offsets, torch.tensor([0, 5, 6, L])))
    first = performer.attention(q[:, :, :3], k[:, :, :5], v[:, :, :5])
    assert_near(crossed[:, :, :3], first)


@pytest.mark.parametrize("is_causal", [False, True])
def test_fitted_parameters_are_those_of_the_call(is_causal):
    q, k, v = (x[:1] for x in inputs(torch.float64))
    for name in ("optimal_positive", "favor_sharp_diagonal", "favor_sharp"):
        statistics = performer.fit_feature_map(q, k, name)
        named = {"feature_map": name, "projection": matrix()}
        given = performer.attention(
            q, k, v, is_causal=is_causal, map_parameters=statistics, **named
        )
        if not is_causal:
            assert_near(given, performer.attention(q, k, v, **named), 1e-12)
        other = performer.fit_feature_map(q, k, name, scale=2.0)
        assert_far(
            given, performer.attention(q, k, v, is_causal=is_causal, map_parameters=other, **named)
        )
    mask = padding()[:1]
    masked = performer.fit_feature_map(q, k, "optimal_positive", key_padding_mask=mask)
    assert not torch.equal(masked, performer.fit_feature_map(q, k, "optimal_positive"))


def test_gradients_of_garbage_under_masks_are_zero():
    q, k, v = inputs()
    mask = padding()
    k = k.masked_fill(mask[:, None, :, None], float("nan")).requires_grad_()
    v = v.masked_fill(mask[:, None, :, None], 1e30).requires_grad_()
    out = performer.attention(q, k, v, attn_mask=~mask[:, None, None, :])
    out.sum().backward()
    for gradient in (k.grad, v.grad):
        assert torch.isfinite(gradient).all()
        assert gradient[1].abs().max() == 0
    assert out[1].abs().max() == 0 and out.shape == (B, H, L, v.shape[-1])
