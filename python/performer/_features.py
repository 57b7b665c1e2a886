# SPDX-License-Identifier: Apache-2.0
"""Feature maps and their matrices: what turns queries and keys into features."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, fields
from typing import Any

import torch

from performer._library import call

DEFAULT_NUM_FEATURES = 256


@dataclass(frozen=True)
class Features:
    """What the operators take beside tensors of one call: the same for every call of a stream."""

    projection: torch.Tensor | None = None
    map_parameters: torch.Tensor | None = None
    feature_map: str = "positive"
    scale: float | None = None
    feature_eps: float | None = None
    compatibility: str = "none"
    renormalize: bool = True
    window: int = 0
    sinks: int = 0

    def as_arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def difference(self, other: Features) -> str | None:
        """The first field in which the two differ, by value."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine is theirs:
                continue
            if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
                if torch.equal(mine, theirs):
                    continue
            elif not isinstance(mine, torch.Tensor) and mine == theirs:
                continue
            return field.name
        return None


def draw_projection(
    num_rows: int,
    head_dim: int,
    *,
    kind: str = "orthogonal",
    row_norm: str = "chi",
    seed: int = 0,
    layer: int = 0,
    head: int = 0,
    redraw: int = 0,
    compact: bool = False,
) -> torch.Tensor:
    """The random matrix [num_rows, head_dim] of these arguments, the same bits everywhere.

    kind: "orthogonal", "iid", "hadamard", "givens" or "simplex"; row_norm: "chi" (unbiased) or
    "sqrt_d" (lower variance, biased low). The maps that make two features of each row
    ("hyperbolic", "trig") need half as many rows as features. compact, for "hadamard": the signs and
    scales that make up the same matrix, int32 [num_rows, columns], which serve as a projection
    wherever the matrix does and are applied by fast transforms.
    """
    draw = torch.ops.performer.draw_projection
    return call(draw, num_rows, head_dim, kind, row_norm, seed, layer, head, redraw, compact)


# Kernels transform blocks up to this size, and expand the compact form for maps that change or
# double the rows.
_LARGEST_TRANSFORM = 1024
_MAPS_OF_DENSE_ROWS = frozenset(
    ("hyperbolic", "trig", "optimal_positive", "favor_sharp_diagonal", "favor_sharp")
)


def prefers_compact(feature_map: str, head_dim: int, kind: str) -> bool:
    """Whether a drawn matrix is kept in compact form."""
    has_transform = feature_map not in _MAPS_OF_DENSE_ROWS and head_dim <= _LARGEST_TRANSFORM
    return kind == "hadamard" and has_transform


def head_dim_of(projection: torch.Tensor) -> int:
    """The head dim that a matrix, dense or compact, is for."""
    if projection.is_floating_point():
        return projection.shape[-1]
    return int(projection.flatten(0, -2)[0, 1])  # each compact row names it


@functools.lru_cache(maxsize=32)
def _drawn(
    feature_map: str, num_features: int, head_dim: int, kind: str, row_norm: str, seed: int
) -> torch.Tensor:
    # A tensor made in inference mode could not serve a later call that records gradients.
    with torch.inference_mode(False):
        rows = call(torch.ops.performer.num_projection_rows, feature_map, num_features)
        compact = prefers_compact(feature_map, head_dim, kind)
        return draw_projection(
            rows, head_dim, kind=kind, row_norm=row_norm, seed=seed, compact=compact
        )


# Compiled graphs hold the matrix as a constant.
@torch.compiler.assume_constant_result
def drawn_projection(
    feature_map: str, num_features: int, head_dim: int, kind: str, row_norm: str, seed: int
) -> torch.Tensor:
    """The matrix behind `num_features` features; not to be changed, calls share it."""
    return _drawn(feature_map, num_features, head_dim, kind, row_norm, seed)


@torch.compiler.assume_constant_result
def _num_projection_rows(feature_map: str, num_features: int) -> int:
    return call(torch.ops.performer.num_projection_rows, feature_map, num_features)


def num_state_features(feature_map: str, rows: int) -> int:
    """Features that `rows` rows of a matrix make."""
    return rows * 2 // _num_projection_rows(feature_map, 2)


def resolve_projection(
    projection: str | torch.Tensor | None,
    feature_map: str,
    num_features: int | None,
    head_dim: int,
    row_norm: str,
    seed: int,
) -> torch.Tensor | None:
    """The matrix that a caller names, gives, or does without."""
    if isinstance(projection, str):
        features = DEFAULT_NUM_FEATURES if num_features is None else num_features
        width = operator.index(head_dim)  # a number, where a compiled graph has a symbol
        return drawn_projection(feature_map, features, width, projection, row_norm, seed)
    if projection is None or num_features is None:
        return projection
    if not isinstance(projection, torch.Tensor):
        raise TypeError(
            f"attention: projection is {type(projection).__name__}, expected a name, a "
            "torch.Tensor or None"
        )
    rows = _num_projection_rows(feature_map, num_features)
    if projection.shape[-2] != rows:
        raise ValueError(
            f"attention: num_features is {num_features}, expected None or what the "
            f"{projection.shape[-2]} rows of projection make (it is given)"
        )
    return projection
