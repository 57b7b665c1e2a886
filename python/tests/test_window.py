# SPDX-License-Identifier: Apache-2.0
"""window and sinks: exact nearby, features far away, between softmax and FAVOR+."""

from __future__ import annotations

import pytest
import torch
from cases import H, L, assert_far, assert_near, inputs, matrix, padding

import performer

sdpa = torch.nn.functional.scaled_dot_product_attention


def gradients(function, tensors, **named):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves, **named)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_window_over_everything_is_softmax(dtype, bound, heads, is_causal):
    tensors = inputs(torch.float64, heads=heads)
    named = {"is_causal": is_causal, "enable_gqa": True}
    expected = gradients(sdpa, tensors, **named)
    got = gradients(
        performer.attention, [x.to(dtype) for x in tensors], window=L, projection=matrix(), **named
    )
    for a, b in zip(got, expected):
        assert_near(a, b, bound)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_of_keys_reaches_both_parts(is_causal):
    q, k, v = inputs(torch.float64)
    keep = ~padding()
    keep[1, 0] = True
    out = performer.attention(q, k, v, keep[:, None, None, :], is_causal=is_causal, window=L)
    past = torch.ones(L, L, dtype=torch.bool).tril() if is_causal else True
    expected = sdpa(q, k, v, keep[:, None, None, :] & past).nan_to_num(0)
    assert_near(out, expected, 1e-12)
    garbage = torch.where(keep[:, None, :, None], v, torch.nan)
    for window in (1, 2, L):
        named = {"is_causal": is_causal, "window": window}
        masked = performer.attention(q, k, garbage, keep[:, None, None, :], **named)
        assert torch.isfinite(masked).all()


def test_windows_and_sinks_lie_between():
    tensors = inputs(torch.float64)
    results = {
        (window, sinks): performer.attention(*tensors, window=window, sinks=sinks, num_features=8)
        for window, sinks in ((0, 0), (1, 0), (2, 0), (2, 1), (L, 0))
    }
    outs = list(results.values())
    for i, a in enumerate(outs):
        for b in outs[:i]:
            assert_far(a, b)
    module = performer.FavorAttention(tensors[0].shape[-1], 8, window=2, sinks=1)
    assert torch.equal(module(*tensors), results[2, 1])


@pytest.mark.parametrize("is_causal", [False, True])
def test_operators_with_a_window(is_causal):
    named = {"projection": matrix(), "window": 2, "sinks": 1, "key_padding_mask": padding()}
    tensors = [x.requires_grad_() for x in inputs()]
    torch.library.opcheck(torch.ops.performer.attention.default, (*tensors, is_causal), named)
    assert torch.autograd.gradcheck(
        lambda *x: performer.attention(*x, is_causal=is_causal, projection=matrix(), window=2),
        [x[:1, :2].requires_grad_() for x in inputs(torch.float64)],
    )


def test_what_is_refused():
    tensors = inputs()
    for change, text in (
        ({"window": -1}, "window is -1, expected 0 or more tokens"),
        ({"window": 2, "sinks": -1}, "sinks is -1, expected 0 or more tokens"),
        ({"sinks": 1}, "sinks is 1, expected 0 (without a window every key goes through features)"),
        (
            {"window": 2, "feature_map": "relu"},
            "window is 2, expected 0 (feature_map relu has no scores to join exact ones)",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            performer.attention(*tensors, **change)
        assert str(caught.value) == "bidirectional_forward: " + text
