# SPDX-License-Identifier: Apache-2.0
"""method="exact" side by side with scaled_dot_product_attention in float64."""

from __future__ import annotations

import pytest
import torch
from cases import B, H, L, assert_far, assert_near, inputs, padding

import performer

sdpa = torch.nn.functional.scaled_dot_product_attention
ops = torch.ops.performer


def keep_and_bias() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    keep = torch.rand(B, H, 1, L, generator=generator) > 0.4
    keep[..., 0] = True  # sdpa gives NaN where nothing is left
    return keep, torch.randn(B, H, 1, L, generator=generator, dtype=torch.float64)


CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"attn_mask": keep_and_bias()[0]},
    "float mask": {"attn_mask": keep_and_bias()[1]},
    "shared mask": {"attn_mask": keep_and_bias()[0][:, :1]},
    "grouped heads": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_equals_sdpa_forward_and_backward(dtype, bound, name):
    named = CALLS[name]
    tensors = inputs(torch.float64, heads=2 if name == "grouped heads" else H)
    results = []
    for function, kind, options in (
        (performer.attention, dtype, {**named, "method": "exact"}),
        (sdpa, torch.float64, named),
    ):
        leaves = [x.to(kind).requires_grad_() for x in tensors]
        out = function(*leaves, **options)
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad for x in leaves)])
    assert results[0][0].dtype == dtype
    for a, b in zip(*results):
        assert_near(a, b, bound)
    if named:
        options = {"enable_gqa": True} if name == "grouped heads" else {}
        assert_far(performer.attention(*tensors, **options), results[1][0])


def test_a_window_alone_leaves_far_keys_out():
    q, k, v = inputs(torch.float64)
    block = torch.arange(L) // 2
    near = (block[:, None] - block[None, :]).abs() <= 1
    out = performer.attention(q, k, v, method="exact", window=2)
    assert_near(out, sdpa(q, k, v, near), 1e-12)
    near[:, :1] = near[:, -1:] = True
    out = performer.attention(q, k, v, method="exact", window=2, sinks=1)
    assert_near(out, sdpa(q, k, v, near), 1e-12)


def test_segments_and_padding():
    q, k, v = (x[:1] for x in inputs(torch.float64))
    offsets = torch.tensor([0, 3, L])
    packed = performer.attention(q, k, v, method="exact", cu_seqlens=offsets)
    parts = [sdpa(*(x[:, :, a:b] for x in (q, k, v))) for a, b in ((0, 3), (3, L))]
    assert_near(packed, torch.cat(parts, 2), 1e-12)
    mask = padding()[:1]
    masked = performer.attention(q, k, v, method="exact", key_padding_mask=mask)
    assert_near(masked, sdpa(q, k, v, ~mask[:, None, None, :]), 1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
def test_operators(is_causal):
    named = {"key_padding_mask": padding(), "key_log_weight": torch.zeros(B, L)}
    tensors = [x.requires_grad_() for x in inputs()]
    torch.library.opcheck(ops.exact_attention.default, (*tensors, is_causal), named)
    q, k, v = inputs(torch.float64)
    torch.library.opcheck(ops.exact_forward.default, (q, k, v, is_causal), named)
    saved = ops.exact_forward(q, k, v, is_causal, **named)
    given = (torch.ones_like(saved[0]), q, k, v, *saved, is_causal)
    torch.library.opcheck(ops.exact_backward.default, given, named)
    assert torch.autograd.gradcheck(
        lambda *x: performer.attention(*x, is_causal=is_causal, method="exact"),
        [x[:1, :2].requires_grad_() for x in (q, k, v)],
    )


def test_compiled():
    torch._dynamo.reset()
    tensors = inputs()

    def run(q, k, v):
        return performer.attention(q * 2, k, v, method="exact", is_causal=True)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_near(compiled(*tensors), run(*tensors))


def test_sixteen_bit_tensors_are_rounded_results_of_float():
    for dtype, bound in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        rounded = [x.to(dtype) for x in inputs()]
        results = []
        for tensors in (rounded, [x.float() for x in rounded]):
            leaves = [x.requires_grad_() for x in tensors]
            out = performer.attention(*leaves, method="exact", is_causal=True)
            out.sum().backward()
            assert {x.dtype for x in (out, *(x.grad for x in leaves))} == {tensors[0].dtype}
            results.append([out, *(x.grad for x in leaves)])
        for a, b in zip(*results):
            assert_near(a, b, bound * (1 + float(b.detach().abs().max())))


def test_what_is_refused():
    tensors = inputs()
    with pytest.raises(ValueError, match="^attention: method is 'softmax', expected 'favor' | "):
        performer.attention(*tensors, method="softmax")
    with pytest.raises(
        ValueError, match="^attention: method is 'exact', expected 'favor' \\(a state"
    ):
        performer.attention(*tensors, is_causal=True, method="exact", return_state=True)
