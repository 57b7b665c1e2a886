# SPDX-License-Identifier: Apache-2.0
"""Shapes, layouts and masks of scaled_dot_product_attention, brought to what the operators take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def check_tensors(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise TypeError(f"attention: {name} is {kind}, expected a torch.Tensor")


def to_heads(
    query: Tensor, key: Tensor, value: Tensor, layout: str, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """query, key and value as [B, H, L, D] views, and the way back for the output."""
    check_tensors(query=query, key=key, value=value)
    rank = query.dim()
    if not rank == key.dim() == value.dim() or rank < 2:
        raise ValueError(
            f"attention: query, key, value have {rank}, {key.dim()}, {value.dim()} dimensions, "
            "expected the same number, 2 or more"
        )
    if layout not in ("BHLD", "BLHD"):
        raise ValueError(f"attention: layout is {layout!r}, expected 'BHLD' | 'BLHD'")
    if layout == "BLHD":
        if rank != 4:
            raise ValueError(
                f"attention: query has {rank} dimensions, expected 4 (layout is 'BLHD')"
            )
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if rank >= 4 and query.shape[-3] != key.shape[-3] and not enable_gqa:
        raise ValueError(
            f"attention: key has {key.shape[-3]} heads, expected {query.shape[-3]} (as query; "
            "enable_gqa=True lets query heads share key heads)"
        )
    if rank == 4:
        if layout == "BLHD":
            return query, key, value, lambda out: out.transpose(1, 2)
        return query, key, value, lambda out: out
    lead = query.shape[:-2]
    if rank == 2:
        query, key, value = (x[None, None] for x in (query, key, value))
    elif rank == 3:
        query, key, value = (x[:, None] for x in (query, key, value))
    else:
        query, key, value = (x.flatten(0, -4) for x in (query, key, value))
    return query, key, value, lambda out: out.reshape(*lead, *out.shape[-2:])


def key_arguments(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None,
    shape: torch.Size,
    key: Tensor,
) -> dict[str, Any]:
    """The operators' masks and segments, from those of a call whose query has `shape`."""
    if key_padding_mask is not None:
        check_tensors(key_padding_mask=key_padding_mask)
        if len(shape) != 4:
            key_padding_mask = key_padding_mask.reshape(-1, key_padding_mask.shape[-1])
    key_log_weight = None
    if attn_mask is not None:
        check_tensors(attn_mask=attn_mask)
        weights = _per_key(attn_mask, shape, key)
        if attn_mask.dtype == torch.bool:
            ignored = weights.logical_not()
            if ignored.shape[1] == 1:
                ignored = ignored[:, 0]
                if key_padding_mask is not None:
                    ignored = ignored | key_padding_mask
                key_padding_mask = ignored
            else:
                zeros = torch.zeros(ignored.shape, device=ignored.device)
                key_log_weight = zeros.masked_fill(ignored, -torch.inf)
        else:
            key_log_weight = weights
    if cu_seqlens is None or isinstance(cu_seqlens, torch.Tensor):
        cu_seqlens_q = cu_seqlens_k = cu_seqlens
    else:
        cu_seqlens_q, cu_seqlens_k = cu_seqlens
    return {
        "key_padding_mask": key_padding_mask,
        "key_log_weight": key_log_weight,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }


def _per_key(mask: Tensor, shape: torch.Size, key: Tensor) -> Tensor:
    """The mask of a query of `shape` as [B, W, S], W = 1 or the number of key heads."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attention: attn_mask has dtype {mask.dtype}, expected bool or floating")
    if mask.requires_grad:
        raise ValueError(
            "attention: attn_mask requires a gradient, expected none (weights of keys carry none; "
            "pass attn_mask.detach())"
        )
    rank = len(shape)
    B, heads, S = key.shape[:3]
    wanted = [*shape[:-3], heads, 1, S] if rank >= 4 else [*shape[:-2], 1, S]
    given = list(mask.shape)
    mask = mask.reshape([1] * (rank - len(given)) + given)
    fits = mask.dim() == rank and all(
        x in (1, y) for n, (x, y) in enumerate(zip(mask.shape, wanted)) if n != rank - 2
    )
    if not fits or mask.shape[-2] != 1:
        why = " (linear attention can weigh keys, not pairs of query and key)" if fits else ""
        raise ValueError(
            f"attention: attn_mask has shape {given}, expected one that broadcasts to {wanted}{why}"
        )
    if rank >= 4:
        wanted[-3] = mask.shape[-3]
    return mask.expand(wanted).reshape(B, -1, S)
