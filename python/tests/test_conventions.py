# SPDX-License-Identifier: Apache-2.0
"""The conventions of scaled_dot_product_attention: masks, ranks, layouts, grouped heads. With one
key everywhere but one, attention by features and by softmax agree, so both can be compared."""

from __future__ import annotations

import pytest
import torch
from cases import B, D, E, H, L, assert_far, assert_near, brute_force, inputs, matrix, padding

import performer

sdpa = torch.nn.functional.scaled_dot_product_attention


def attend(q, k, v, *arguments, **named):
    return performer.attention(q, k, v, *arguments, projection=matrix(), **named)


# Keys that are all equal get equal weights from any estimator, so outputs are those of softmax.
def equal_keys(heads: int = H) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = inputs(heads=heads)
    return q, k[:, :, :1].expand(-1, -1, L, -1).contiguous(), v


def masks() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    keep = torch.rand(B, H, 1, L, generator=generator) > 0.4
    bias = torch.randn(B, H, 1, L, generator=generator)
    return {
        "bool [B, 1, 1, S]": keep[:, :1],
        "bool [B, H, 1, S]": keep,
        "bool [1, H, 1, S]": keep[:1],
        "bool [1, S]": keep[0, 0],
        "bool [S]": keep[0, 0, 0],
        "float [B, 1, 1, S]": bias[:, :1],
        "float [B, H, 1, S]": bias,
        "float [S]": bias[0, 0, 0],
        "float with -inf": bias.masked_fill(~keep, -torch.inf),
        "float [B, 1, 1, 1]": bias[:, :1, :, :1],
    }


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", masks())
def test_masks_mean_what_they_mean_to_sdpa(name, is_causal):
    mask = masks()[name]
    q, k, v = equal_keys()
    pairs = mask.expand(B, H, L, L)
    if is_causal:  # sdpa takes no mask beside is_causal
        past = torch.ones(L, L, dtype=torch.bool).tril()
        pairs = pairs & past if mask.dtype == torch.bool else pairs.masked_fill(~past, -torch.inf)
    expected = sdpa(q, k, v, pairs).nan_to_num(0)
    assert_near(attend(q, k, v, mask, 0.0, is_causal), expected)
    if mask.shape[-1] == L:
        assert_far(attend(q, k, v, None, 0.0, is_causal), expected)


@pytest.mark.parametrize("name", masks())
def test_masks_weigh_features(name):
    mask = masks()[name]
    q, k, v = inputs(torch.float64)
    weight = mask.double()
    if mask.dtype == torch.bool:
        weight = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    expected = brute_force(q, k, v, matrix(), key_log_weight=weight)
    assert_near(attend(q, k, v, attn_mask=mask), expected, 1e-7 if name[0] == "f" else 1e-12)


def test_masks_of_both_conventions_join():
    q, k, v = inputs()
    keep = masks()["bool [B, 1, 1, S]"]
    joined = attend(q, k, v, keep, key_padding_mask=padding())
    ignored = padding() | ~keep[:, 0, 0]
    assert torch.equal(joined, attend(q, k, v, key_padding_mask=ignored))
    bias = masks()["float [B, H, 1, S]"]
    joined = attend(q, k, v, bias, key_padding_mask=padding())
    without = bias.masked_fill(padding()[:, None, None, :], -torch.inf)
    assert_near(joined, attend(q, k, v, without))


def test_ranks():
    q, k, v = inputs()
    whole = attend(q, k, v)
    assert_near(attend(q[0, 0], k[0, 0], v[0, 0]), whole[0, 0])
    assert_near(attend(q[:, 0], k[:, 0], v[:, 0]), whole[:, 0])
    split = attend(*(x.reshape(1, B, H, L, -1) for x in (q, k, v)))
    assert split.shape == (1, B, H, L, E)
    assert_near(split[0], whole)
    mask, keep = padding(), masks()["bool [B, H, 1, S]"]
    masked = attend(q, k, v, key_padding_mask=mask)
    assert_near(attend(q[:, 0], k[:, 0], v[:, 0], key_padding_mask=mask), masked[:, 0])
    assert_near(attend(q[0, 0], k[0, 0], v[0, 0], key_padding_mask=mask[0]), masked[0, 0])
    five = [x.reshape(B, 1, H, L, -1) for x in (q, k, v)]
    assert_near(attend(*five, key_padding_mask=mask[:, None])[:, 0], masked)
    masked = attend(q, k, v, keep)
    assert_near(attend(q[:, 0], k[:, 0], v[:, 0], keep[:, 0]), masked[:, 0])
    assert_near(attend(*five, keep[:, None])[:, 0], masked)


def test_layouts():
    q, k, v = inputs()
    expected = attend(q, k, v, is_causal=True)
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out = attend(*turned, is_causal=True, layout="BLHD")
    assert out.shape == (B, L, H, E) and out.is_contiguous()
    assert torch.equal(out.transpose(1, 2), expected)
    keep = masks()["bool [B, H, 1, S]"]
    assert torch.equal(attend(*turned, keep, layout="BLHD").transpose(1, 2), attend(q, k, v, keep))


@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_heads_equal_repeated_ones(is_causal):
    q, k, v = inputs(heads=2)
    named = {"is_causal": is_causal, "enable_gqa": True}
    repeated = [x.repeat_interleave(H // 2, 1) for x in (k, v)]
    assert_near(attend(q, k, v, **named), attend(q, *repeated, is_causal=is_causal))
    q, k, v = equal_keys(heads=2)
    assert_near(attend(q, k, v, **named), sdpa(q, k, v, **named))


def test_causality_starts_at_the_top_left():
    q, k, v = equal_keys()
    assert_near(attend(q[:, :, :3], k, v, is_causal=True), sdpa(q[:, :, :3], k, v, is_causal=True))


def test_empty_lengths():
    q, k, v = inputs()
    assert attend(q[:, :, :0], k, v).shape == (B, H, 0, E)
    assert attend(q, k[:, :, :0], v[:, :, :0]).abs().max() == 0
    assert attend(q[:0], k[:0], v[:0]).shape == (0, H, L, E)


def test_strides_and_expanded_tensors():
    q, k, v = inputs()
    expected = attend(q, k, v)
    strided = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert not strided[0].is_contiguous()
    assert torch.equal(attend(*strided), expected)
    shared = k[:1, :1].expand(B, H, L, D)
    assert torch.equal(attend(q, shared, v), attend(q, shared.contiguous(), v))
