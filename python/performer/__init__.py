# SPDX-License-Identifier: Apache-2.0
"""Attention in linear time by random features (FAVOR+) for PyTorch.

Loads the operator library and shows its functions; `torch.ops.performer` has the operators
themselves. Tensors are float32 or float64 on the CPU. Wrong arguments raise ValueError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["attention", "draw_projection", "library_path"]

_NAME = "libperformer_ops.so"


def library_path() -> Path:
    """The operator library in use: $PERFORMER_OPS_LIBRARY, else the one beside this file, else the
    one of the source tree's build folder."""
    named = os.environ.get("PERFORMER_OPS_LIBRARY")
    package = Path(__file__).resolve().parent
    candidates = [Path(named)] if named else [package / _NAME, package.parents[1] / "build" / _NAME]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise ImportError(
        f"performer: no operator library at {tried}; build the target performer_ops, or name the "
        "file in PERFORMER_OPS_LIBRARY"
    )


torch.ops.load_library(library_path())

# The messages of wrong arguments: "operator: argument is X, expected Y". Torch turns the C++
# exception behind them into a RuntimeError.
_WRONG_ARGUMENT = re.compile(r"^\w+: .*expected ", re.DOTALL)


def _call(operator: Callable[..., torch.Tensor], *arguments: object) -> torch.Tensor:
    try:
        return operator(*arguments)
    except RuntimeError as error:
        if _WRONG_ARGUMENT.match(str(error)):
            raise ValueError(str(error)) from None
        raise


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    projection: torch.Tensor | None = None,
    *,
    key_padding_mask: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    is_causal: bool = False,
    feature_map: str = "positive",
    scale: float | None = None,
    feature_eps: float | None = None,
) -> torch.Tensor:
    """FAVOR+ attention: q [B, H, L, D], k [B, H, S, D], v [B, H, S, E] -> [B, H, L, E].

    projection: [M, D] or [P, M, D] with P = 1 or H, from draw_projection; None is legal with
        feature_map="relu" only.
    key_padding_mask: [B, S] bool, True = ignore this key.
    cu_seqlens_q, cu_seqlens_k: N + 1 offsets of packed segments, int32 or int64.
    is_causal: keys j <= i only, aligned at the top left when L != S.
    feature_map: "positive" (approximates softmax) or "relu".
    scale: multiplies q.k; 1/sqrt(D) for "positive" and 1 for "relu" by default.
    feature_eps: added to each relu feature, 1e-3 by default.

    Differentiable once in q, k and v. A row with no allowed key gives zeros.
    """
    return _call(
        torch.ops.performer.attention,
        q,
        k,
        v,
        projection,
        key_padding_mask,
        cu_seqlens_q,
        cu_seqlens_k,
        is_causal,
        feature_map,
        scale,
        feature_eps,
    )


def draw_projection(
    num_features: int,
    head_dim: int,
    *,
    kind: str = "orthogonal",
    row_norm: str = "chi",
    seed: int = 0,
    layer: int = 0,
    head: int = 0,
    redraw: int = 0,
) -> torch.Tensor:
    """The random matrix [num_features, head_dim] of these arguments, the same bits everywhere.

    kind: "orthogonal", "iid", "hadamard", "givens" or "simplex"; row_norm: "chi" (unbiased) or
    "sqrt_d" (lower variance).
    """
    operator = torch.ops.performer.draw_projection
    return _call(operator, num_features, head_dim, kind, row_norm, seed, layer, head, redraw)
