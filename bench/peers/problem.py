# SPDX-License-Identifier: Apache-2.0
"""The problem that every implementation solves: B = 1, H = 8, D = 64, M = 256, float32, standard
normal q, k, v and dout. The same seed gives every process the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

B, H, D, M = 1, 8, 64, 256


@dataclass(frozen=True)
class Form:
    """The function a call stands for; two calls of one form may be compared.

    feature_map: "positive" or "relu" (random features), "exact" (softmax), "linformer" or "lsh".
    scale: multiplies q.k under relu features; softmax and its features use 1/sqrt(D).
    """

    feature_map: str
    causal: bool = False
    num_features: int = M
    scale: float = 1.0

    @property
    def has_features(self) -> bool:
        return self.feature_map in ("positive", "relu")

    def counterpart(self) -> Form:
        """The form of this project that is timed beside it: itself, or positive features."""
        return self if self.has_features else Form("positive", self.causal)


@dataclass(frozen=True)
class Problem:
    form: Form
    q: torch.Tensor  # [B, H, L, D], as k, v and dout
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    w: torch.Tensor  # [num_features, D], the random matrix of every implementation that takes one

    @property
    def length(self) -> int:
        return self.q.shape[2]


def make_problem(form: Form, length: int, w: torch.Tensor) -> Problem:
    generator = torch.Generator().manual_seed(length)
    shape = (B, H, length, D)
    q, k, v, dout = (torch.randn(shape, generator=generator) for _ in range(4))
    return Problem(form, q, k, v, dout, w)
