# SPDX-License-Identifier: Apache-2.0
"""FavorAttention: attention() as a module that owns its random matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from performer._attention import attention, fit_feature_map
from performer._decode_state import DecodeState
from performer._features import (
    DEFAULT_NUM_FEATURES,
    Features,
    draw_projection,
    prefers_compact,
)
from performer._library import call


class FavorAttention(torch.nn.Module):
    """Attention between given queries, keys and values; no trained weights.

    The random matrix is the buffer `projection`, [R, head_dim], or [num_matrices, R, head_dim]
    with a matrix for each key head; a Hadamard matrix is kept in the compact form of
    draw_projection where the map's kernels have a fast transform. It is drawn from (seed, layer, head, redraw index), never
    from torch's generators, and is part of the state_dict like the redraw index, so that a
    restored module computes the same. Casting the module to 16 bits leaves the matrix in
    float32. Only redraw() changes it: training and evaluation compute the same.

    The options are those of attention(); `fit` keeps the parameters of a fitted map in the buffer
    `map_parameters`.
    """

    projection: torch.Tensor | None
    map_parameters: torch.Tensor | None
    redraw_index: torch.Tensor

    def __init__(
        self,
        head_dim: int,
        num_features: int = DEFAULT_NUM_FEATURES,
        *,
        num_matrices: int | None = None,
        is_causal: bool = False,
        feature_map: str = "positive",
        projection: str | None = "orthogonal",
        row_norm: str = "chi",
        seed: int = 0,
        layer: int = 0,
        scale: float | None = None,
        feature_eps: float | None = None,
        renormalize: bool = True,
        window: int = 0,
        sinks: int = 0,
        enable_gqa: bool = False,
        layout: str = "BHLD",
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_features = head_dim if projection is None else num_features
        self.num_matrices = num_matrices
        self.is_causal = is_causal
        self.feature_map = feature_map
        self.projection_kind = projection
        self.row_norm = row_norm
        self.seed = seed
        self.layer = layer
        self.scale = scale
        self.feature_eps = feature_eps
        self.renormalize = renormalize
        self.window = window
        self.sinks = sinks
        self.enable_gqa = enable_gqa
        self.layout = layout
        self.register_buffer("redraw_index", torch.zeros((), dtype=torch.int64))
        self.register_buffer("map_parameters", None)
        self.register_buffer("projection", self._draw(0))

    def _draw(self, index: int) -> torch.Tensor | None:
        if self.projection_kind is None:
            return None
        rows = call(torch.ops.performer.num_projection_rows, self.feature_map, self.num_features)
        drawn = [
            draw_projection(
                rows,
                self.head_dim,
                kind=self.projection_kind,
                row_norm=self.row_norm,
                seed=self.seed,
                layer=self.layer,
                head=head,
                redraw=index,
                compact=prefers_compact(self.feature_map, self.head_dim, self.projection_kind),
            )
            for head in range(self.num_matrices or 1)
        ]
        return drawn[0] if self.num_matrices is None else torch.stack(drawn)

    @torch.no_grad()
    def redraw(self, index: int | None = None) -> None:
        """Draws the matrix of redraw index `index`, by default the one after the present one."""
        if index is None:
            index = int(self.redraw_index) + 1
        if self.projection is not None:
            drawn = self._draw(index)
            # A matrix that was loaded may have the other form, dense or compact.
            if drawn.dtype == self.projection.dtype and drawn.shape == self.projection.shape:
                self.projection.copy_(drawn)
            else:
                self.projection = drawn.to(self.projection.device)
        self.redraw_index.fill_(index)

    @torch.no_grad()
    def fit(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Fits the parameters of a fitted map to these tokens, for all later calls."""
        if self.layout == "BLHD":
            query, key = query.transpose(1, 2), key.transpose(1, 2)
        self.map_parameters = fit_feature_map(query, key, self.feature_map, scale=self.scale)

    def new_state(self) -> DecodeState:
        """The empty state of a stream; a later redraw does not touch it."""
        return DecodeState._of(self._features(for_state=True))

    def _features(self, for_state: bool) -> Features:
        """The options of a call; with buffers of its own for a state, which outlives a redraw."""
        matrix, parameters = self.projection, self.map_parameters
        if for_state:
            matrix = None if matrix is None else matrix.clone()
            parameters = None if parameters is None else parameters.clone()
        return Features(
            projection=matrix,
            map_parameters=parameters,
            feature_map=self.feature_map,
            scale=self.scale,
            feature_eps=self.feature_eps,
            renormalize=self.renormalize,
            window=self.window,
            sinks=self.sinks,
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *,
        key_padding_mask: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        initial_state: DecodeState | None = None,
        return_state: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, DecodeState]:
        """As attention()."""
        return attention(
            query,
            key,
            value,
            attn_mask,
            is_causal=self.is_causal,
            key_padding_mask=key_padding_mask,
            cu_seqlens=cu_seqlens,
            initial_state=initial_state,
            return_state=return_state,
            enable_gqa=self.enable_gqa,
            layout=self.layout,
            **self._features(for_state=return_state).as_arguments(),
        )

    def extra_repr(self) -> str:
        kind = "none" if self.projection_kind is None else self.projection_kind
        return (
            f"head_dim={self.head_dim}, num_features={self.num_features}, "
            f"feature_map={self.feature_map}, projection={kind}, is_causal={self.is_causal}"
        )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FavorAttention:
        before = {name: buffer for name, buffer in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        # The parameters of a fitted map exist once fitted.
        given = state_dict.get(prefix + "map_parameters")
        if given is not None and self.map_parameters is None:
            self.map_parameters = torch.empty_like(given)
        # A Hadamard matrix is taken in either form.
        given = state_dict.get(prefix + "projection")
        own = self.projection
        if given is not None and own is not None and self.projection_kind == "hadamard":
            if given.is_floating_point() != own.is_floating_point():
                self.projection = torch.empty_like(given, device=own.device)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
