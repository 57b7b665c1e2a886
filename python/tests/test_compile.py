# SPDX-License-Identifier: Apache-2.0
"""torch.compile without graph breaks, and autocast."""

from __future__ import annotations

import pytest
import torch
from cases import B, D, H, L, assert_near, inputs, matrix, padding

import performer


def gradients(function, tensors):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


CALLS = {
    "default": {},
    "causal": {"is_causal": True, "projection": matrix().float()},
    "masked": {"attn_mask": ~padding()[:, None, None, :], "feature_map": "relu"},
    "layout": {"layout": "BLHD", "feature_map": "favor_sharp_diagonal"},
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_compiled_graphs_equal_eager_ones(name, dynamic):
    torch._dynamo.reset()
    tensors = inputs()
    if name == "layout":
        tensors = [x.transpose(1, 2) for x in tensors]

    def run(q, k, v):
        return performer.attention(q * 2, k, v, **CALLS[name]) + 1

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for a, b in zip(gradients(compiled, tensors), gradients(run, tensors)):
        assert_near(a, b)
    with torch.no_grad():
        assert_near(compiled(*tensors), run(*tensors))


def test_a_compiled_module_follows_its_matrix():
    torch._dynamo.reset()
    module = performer.FavorAttention(D, 16, is_causal=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    tensors = inputs()
    for _ in range(2):
        for a, b in zip(gradients(compiled, tensors), gradients(module, tensors)):
            assert_near(a, b)
        module.redraw()


def test_a_compiled_decoding_step():
    torch._dynamo.reset()
    w = matrix(H).float()

    def step(q, k, v, c, S, z, position):
        return torch.ops.performer.decode_step(q, k, v, c, S, z, position, projection=w)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    q, k, v = inputs()
    states = [[torch.zeros(B, H, 6), torch.zeros(B, H, 6, 3), torch.zeros(B, H, 6)]] * 2
    for t in range(L):
        row = [x[:, :, t : t + 1] for x in (q, k, v)]
        (a, *states[0]), (b, *states[1]) = (
            function(*row, *state, t) for function, state in zip((compiled, step), states)
        )
        assert torch.equal(a, b)


@pytest.mark.parametrize("method", ["favor", "exact"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_q_k_and_v_its_type(dtype, method):
    q, k, v = inputs()
    mixed = (q.bfloat16(), k, v.half())
    expected = performer.attention(*(x.to(dtype) for x in mixed), method=method)
    leaf = k.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out = performer.attention(*mixed, method=method)
        performer.attention(q, leaf, v, method=method).sum().backward()
        wide = performer.attention(q.double(), k.double(), v.double(), method=method)
    assert out.dtype == expected.dtype == dtype and torch.equal(out, expected)
    assert leaf.grad.dtype == torch.float32 and leaf.grad.abs().max() > 0
    assert wide.dtype == torch.float64


def test_autocast_leaves_the_matrix_in_float32():
    q, k, v = inputs()
    w = matrix().float() * (1 + 1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = performer.attention(q, k, v, projection=w)
        rounded = performer.attention(q, k, v, projection=w.bfloat16())
    expected = performer.attention(*(x.bfloat16() for x in (q, k, v)), projection=w)
    assert torch.equal(out, expected) and not torch.equal(out, rounded)


def test_compiled_graphs_under_autocast():
    torch._dynamo.reset()
    tensors = inputs()

    def run(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return performer.attention(q @ torch.eye(D), k, v, is_causal=True)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(compiled, tensors), gradients(run, tensors)):
        assert a.dtype == b.dtype
        assert_near(a, b, 1e-2)
