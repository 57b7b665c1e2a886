# SPDX-License-Identifier: Apache-2.0
"""Inputs that the tests share, and attention by random features written out in float64."""

from __future__ import annotations

import math

import torch

B, H, L, D, E, M = 2, 4, 7, 4, 3, 6


def inputs(
    dtype: torch.dtype = torch.float32, key_scale: float = 1.0, heads: int = H
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, and k, v with `heads` heads."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, L, D), (B, heads, L, D), (B, heads, L, E)]
    q, k, v = (torch.randn(s, generator=generator, dtype=dtype) for s in shapes)
    return q, k * key_scale, v


def matrix(heads: int | None = None, rows: int = M) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (rows, D) if heads is None else (heads, rows, D)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def padding() -> torch.Tensor:
    """[B, L]: one key of the first item and all of the second are ignored."""
    mask = torch.zeros(B, L, dtype=torch.bool)
    mask[0, 2] = True
    mask[1] = True
    return mask


def brute_force(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    *,
    is_causal: bool = False,
    feature_map: str = "positive",
    key_padding_mask: torch.Tensor | None = None,
    key_log_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Features of all pairs, forbidden ones set to zero, rows divided by their sums."""
    q, k, v, w = (x.double() for x in (q, k, v, w))
    root = q.shape[-1] ** -0.25 if feature_map == "positive" else 1.0

    def features(x: torch.Tensor) -> torch.Tensor:
        a = (x * root) @ w.mT
        if feature_map == "positive":
            return torch.exp(a - (x * root).square().sum(-1, keepdim=True) / 2)
        return torch.relu(a) + 1e-3

    pairs = features(q) @ features(k).mT
    if key_log_weight is not None:
        pairs = pairs * torch.exp(key_log_weight.double())
    if is_causal:
        pairs = pairs.tril()
    if key_padding_mask is not None:
        pairs = pairs.masked_fill(key_padding_mask[:, None, None, :], 0)
    return torch.nan_to_num(pairs / pairs.sum(-1, keepdim=True)) @ v


def assert_near(a: torch.Tensor, b: torch.Tensor, bound: float = 1e-5) -> None:
    torch.testing.assert_close(a.double(), b.double(), atol=bound, rtol=0)


def assert_far(a: torch.Tensor, b: torch.Tensor) -> None:
    assert math.isfinite(float(a.detach().double().sum()))
    assert float((a - b).detach().abs().max()) > 1e-3
