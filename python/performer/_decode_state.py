# SPDX-License-Identifier: Apache-2.0
"""The state of causal attention, as a value."""

from __future__ import annotations

import os
from typing import Any

import torch

from performer._features import Features, head_dim_of
from performer._inputs import key_arguments, to_heads
from performer._library import call


class DecodeState:
    """What later tokens need to know of earlier ones: constant in size, however many there were.

    attention(..., return_state=True) and FavorAttention give one; an empty one is made of the
    feature map's matrix and options:

        state = DecodeState(projection, feature_map="positive", scale=None)

    With a window the state also holds the keys and values of the sinks and of the last two blocks of
    `window` tokens, and cannot be merged. Tokens that start a stream are one causal pass; with a
    window those that follow are taken one by one.

    A state is a value: copy() (or the copy module) forks the stream, and steps change no other.
    States record no gradients.
    """

    __slots__ = ("_features", "_handle")

    def __init__(
        self,
        projection: torch.Tensor | None,
        *,
        map_parameters: torch.Tensor | None = None,
        feature_map: str = "positive",
        scale: float | None = None,
        feature_eps: float | None = None,
        renormalize: bool = True,
        window: int = 0,
        sinks: int = 0,
    ) -> None:
        self._features = Features(
            projection=projection,
            map_parameters=map_parameters,
            feature_map=feature_map,
            scale=scale,
            feature_eps=feature_eps,
            renormalize=renormalize,
            window=window,
            sinks=sinks,
        )
        self._handle = torch.classes.performer.DecodeState()

    @classmethod
    def _of(cls, features: Features, handle: Any = None) -> DecodeState:
        state = cls.__new__(cls)
        state._features = features
        state._handle = torch.classes.performer.DecodeState() if handle is None else handle
        return state

    @property
    def position(self) -> int:
        """Tokens seen so far, masked ones included."""
        return self._handle.position()

    @property
    def projection(self) -> torch.Tensor | None:
        """The matrix of the stream."""
        return self._features.projection

    def step(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *,
        enable_gqa: bool = False,
        key_padding_mask: torch.Tensor | None = None,
        layout: str = "BHLD",
    ) -> torch.Tensor:
        """Attention of the tokens that follow, one or more, which the state then holds too:
        query [B, H, T, D], key [B, G, T, D], value [B, G, T, E] -> [B, H, T, E]."""
        q, k, v, restore = to_heads(query, key, value, layout, enable_gqa)
        shape = q.shape if layout == "BLHD" else query.shape
        keys = key_arguments(attn_mask, key_padding_mask, None, shape, k)
        return restore(self._advance("step", q, k, v, keys))

    def copy(self) -> DecodeState:
        """A state of its own that goes on from here."""
        return DecodeState._of(self._features, self._handle.clone())

    def merge(self, other: DecodeState) -> DecodeState:
        """The state of a stream that has seen the tokens of both: what one stream leaves behind can
        be computed in parts, in any order."""
        field = self._features.difference(other._features)
        if field is not None:
            raise ValueError(f"merge: {field} differs between the states, expected the same")
        return DecodeState._of(self._features, call(self._handle.merge, other._handle))

    def to_bytes(self) -> bytes:
        """A snapshot in the safetensors format, from which the stream goes on in the same bits. It
        names the feature map and holds a hash of the matrix, not the matrix."""
        operator = torch.ops.performer.state_to_bytes
        arguments = self._features.as_arguments()
        return call(operator, self._handle, self._head_dim(), **arguments).numpy().tobytes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """The snapshot as a file, which appears whole or not at all."""
        operator = torch.ops.performer.save_state
        arguments = self._features.as_arguments()
        call(operator, self._handle, os.fspath(path), self._head_dim(), **arguments)

    @classmethod
    def from_bytes(
        cls, data: bytes, projection: torch.Tensor | None, **options: Any
    ) -> DecodeState:
        """The state of a snapshot, with the matrix and the options of DecodeState() it was made
        with. Others, or bytes that are no whole snapshot, raise RuntimeError."""
        state = cls(projection, **options)
        data_tensor = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
        arguments = state._features.as_arguments()
        operator = torch.ops.performer.state_from_bytes
        state._handle = call(operator, data_tensor, state._head_dim(), **arguments)
        return state

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], projection: torch.Tensor | None, **options: Any
    ) -> DecodeState:
        """The same from a file."""
        state = cls(projection, **options)
        operator = torch.ops.performer.load_state
        arguments = state._features.as_arguments()
        state._handle = call(operator, os.fspath(path), state._head_dim(), **arguments)
        return state

    def _head_dim(self) -> int:
        matrix = self._features.projection
        if matrix is None:
            raise ValueError(
                "DecodeState: projection is None, expected a matrix to name in a snapshot"
            )
        return head_dim_of(matrix)

    def __copy__(self) -> DecodeState:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> DecodeState:
        return self.copy()

    def _advance(
        self, op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: dict[str, Any]
    ) -> torch.Tensor:
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise ValueError(
                f"{op}: gradients are recorded, expected torch.no_grad() (states carry none)"
            )
        arguments = {**keys, **self._features.as_arguments()}
        return call(torch.ops.performer.stream, q, k, v, self._handle, **arguments)
