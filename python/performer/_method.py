# SPDX-License-Identifier: Apache-2.0
"""The choice between features and exact attention."""

from __future__ import annotations

import logging
import operator

import torch

from performer._features import DEFAULT_NUM_FEATURES
from performer._library import call

METHODS = ("favor", "exact", "auto")

_log = logging.getLogger("performer")
_announced: set[str] = set()


def resolve_method(
    L: int,
    S: int,
    head_dim: int,
    value_dim: int,
    *,
    num_features: int = DEFAULT_NUM_FEATURES,
    feature_map: str = "positive",
    is_causal: bool = False,
) -> str:
    """ "favor" or "exact": what takes less time for L queries and S keys, and what method="auto"
    takes. The two are not the same function."""
    sizes = (L, S, head_dim, value_dim, num_features)
    return call(torch.ops.performer.resolve_method, feature_map, *sizes, is_causal)


@torch.compiler.assume_constant_result
def _choose_and_log(
    feature_map: str, L: int, S: int, D: int, E: int, num_features: int, is_causal: bool
) -> str:
    method = resolve_method(
        L, S, D, E, num_features=num_features, feature_map=feature_map, is_causal=is_causal
    )
    if method not in _announced:
        _announced.add(method)
        sizes = f"L = {L}, S = {S}, D = {D}, M = {num_features}"
        _log.info(
            "attention: method auto takes %s for %s; resolve_method tells of others", method, sizes
        )
    return method


def automatic_method(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    feature_map: str,
    num_features: int,
    window: int,
    is_causal: bool,
) -> str:
    """The method of one call without gradients."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "attention: method is 'auto' while gradients are recorded, expected 'favor' | 'exact' "
            "(it would train another function at another length)"
        )
    if window != 0:
        raise ValueError(f"attention: window is {window}, expected 0 (method is 'auto')")
    sizes = (q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    numbers = [operator.index(size) for size in sizes]
    return _choose_and_log(feature_map, *numbers, num_features, is_causal)
