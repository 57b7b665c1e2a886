# SPDX-License-Identifier: Apache-2.0
"""The operators as PyTorch sees them: registration, derivatives, values, messages."""

from __future__ import annotations

import math

import pytest
import torch

import performer

B, H, L, D, E, M = 2, 2, 7, 4, 3, 6
MAPS = ["positive", "relu"]


def inputs(dtype: torch.dtype, key_scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, L, D), (B, H, L, D), (B, H, L, E), (H, M, D)]
    q, k, v, w = (torch.randn(s, generator=generator, dtype=dtype) for s in shapes)
    return [q, k * key_scale, v, w]


def padding() -> torch.Tensor:
    mask = torch.zeros(B, L, dtype=torch.bool)
    mask[0, 2] = True
    mask[1] = True  # nothing to attend to
    return mask


def brute_force(q, k, v, w, mask, is_causal, feature_map):
    """Features, forbidden pairs set to zero, rows divided by their sums; in float64."""
    q, k, v, w = (x.double() for x in (q, k, v, w))
    scale = 1 / math.sqrt(D) if feature_map == "positive" else 1.0
    q, k = q * math.sqrt(scale), k * math.sqrt(scale)

    def features(x):
        a = x @ w.mT
        if feature_map == "positive":
            return torch.exp(a - x.square().sum(-1, keepdim=True) / 2)
        return torch.relu(a) + 1e-3

    pairs = features(q) @ features(k).mT
    if is_causal:
        pairs = pairs.tril()
    if mask is not None:
        pairs = pairs.masked_fill(mask[:, None, None, :], 0)
    return torch.nan_to_num(pairs / pairs.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_equals_brute_force(dtype, bound, feature_map, is_causal, masked):
    q, k, v, w = inputs(dtype)
    mask = padding() if masked else None
    out = performer.attention(
        q, k, v, w, key_padding_mask=mask, is_causal=is_causal, feature_map=feature_map
    )
    assert out.dtype == dtype
    expected = brute_force(q, k, v, w, mask, is_causal, feature_map)
    torch.testing.assert_close(out.double(), expected, atol=bound, rtol=0)


@pytest.mark.parametrize("key_scale", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
def test_gradcheck(feature_map, is_causal, key_scale):
    q, k, v, w = inputs(torch.float64, key_scale)

    def run(q, k, v):
        return performer.attention(
            q, k, v, w, key_padding_mask=padding(), is_causal=is_causal, feature_map=feature_map
        )

    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in (q, k, v)])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
def test_opcheck_attention(feature_map, is_causal):
    q, k, v, w = inputs(torch.float32)
    for x in (q, k, v):
        x.requires_grad_()
    arguments = (q, k, v, w, padding(), None, None, is_causal, feature_map, None, None)
    torch.library.opcheck(torch.ops.performer.attention.default, arguments)


@pytest.mark.parametrize("direction", ["bidirectional", "causal"])
@pytest.mark.parametrize("feature_map", MAPS)
def test_opcheck_passes(feature_map, direction):
    q, k, v, w = inputs(torch.float64)
    offsets = torch.tensor([0, 3, 3, L])
    rest = (padding(), offsets, offsets, feature_map, None, None)
    forward = getattr(torch.ops.performer, f"{direction}_forward").default
    torch.library.opcheck(forward, (q, k, v, w, *rest, True))
    saved = forward(q, k, v, w, *rest, True)
    backward = getattr(torch.ops.performer, f"{direction}_backward").default
    torch.library.opcheck(backward, (torch.ones_like(saved[0]), q, k, v, *saved, w, *rest))


@pytest.mark.parametrize("feature_map", MAPS)
def test_decode_step_is_functional_and_equals_the_causal_pass(feature_map):
    q, k, v, w = inputs(torch.float32)
    whole = performer.attention(q, k, v, w, is_causal=True, feature_map=feature_map)
    state = [torch.zeros(B, H, M), torch.zeros(B, H, M, E), torch.zeros(B, H, M)]
    step = torch.ops.performer.decode_step.default
    for t in range(L):
        row = [x[:, :, t : t + 1] for x in (q, k, v)]
        arguments = (*row, *state, t, w, None, feature_map)
        before = [x.clone() for x in state]
        out, *after = step(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(before, state))
        torch.testing.assert_close(out, whole[:, :, t : t + 1], atol=1e-5, rtol=0)
        if t == 2:
            torch.library.opcheck(step, arguments)
        state = after


def test_compiled_graph_gives_the_same_gradients():
    q, k, v, w = inputs(torch.float32)

    def run(q, k, v):
        return performer.attention(q * 2, k, v, w, is_causal=True).square().sum()

    def gradients(function):
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        function(*leaves).backward()
        return [x.grad for x in leaves]

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(run), gradients(compiled)):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, cosine", [("orthogonal", 0), ("hadamard", 0), ("givens", 0), ("simplex", -1 / 7)]
)
def test_draw_projection_repeats_and_couples_its_rows(kind, cosine):
    w = performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=3)
    assert torch.equal(w, performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=3))
    assert not torch.equal(w, performer.draw_projection(8, 8, kind=kind, row_norm="sqrt_d", seed=4))
    expected = 8 * (cosine + (1 - cosine) * torch.eye(8))
    torch.testing.assert_close(w @ w.T, expected, atol=1e-4, rtol=0)


def test_errors_are_value_errors_with_the_text_of_the_kernels():
    q, k, v, w = inputs(torch.float32)
    with pytest.raises(ValueError, match=r"k has dtype Double, expected Float"):
        performer.attention(q, k.double(), v, w)
    with pytest.raises(ValueError, match=r"q has dtype BFloat16, expected Float or Double"):
        performer.attention(*(x.bfloat16() for x in (q, k, v)), w)
    with pytest.raises(ValueError, match=r"'cosine', expected positive \| relu"):
        performer.attention(q, k, v, w, feature_map="cosine")
    with pytest.raises(ValueError, match=r"projection requires a gradient, expected none"):
        performer.attention(q, k, v, w.requires_grad_())
    with pytest.raises(ValueError, match=r"num_features"):
        performer.draw_projection(0, 4)


def test_exports_are_pinned():
    assert performer.__all__ == ["attention", "draw_projection", "library_path"]
    assert performer.library_path().is_file()
