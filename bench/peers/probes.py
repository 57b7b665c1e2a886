# SPDX-License-Identifier: Apache-2.0
"""What else is known to go wrong in attention code, looked for once per implementation: the future
reaching the past, and float16."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from peers.problem import Problem

if TYPE_CHECKING:
    from peers.adapters import Peer

PROBED_LENGTH = 1024


def future_leak(peer: Peer, problem: Problem, calls: Any) -> float:
    """How far the outputs of all tokens but the last move, relative to their size, when the last
    key grows by 8."""
    k = problem.k.clone()
    k[:, :, -1] *= 8
    changed = peer.make(replace(problem, k=k))
    before, after = (c.heads(c.forward())[0][:, :, :-1] for c in (calls, changed))
    return float((after - before).norm() / before.norm())


def float16_result(calls: Any) -> str:
    attend = calls.attend
    if isinstance(attend, torch.nn.Module):
        attend = copy.deepcopy(attend).half()
    try:
        with torch.no_grad():
            out = attend(*(x.half() for x in calls.inputs))
    except (RuntimeError, ValueError) as error:
        return f"float16 is refused ({str(error).splitlines()[0][:80]})"
    return "" if bool(out.isfinite().all()) else "float16 gives NaN or infinity"


def notes(peer: Peer, problem: Problem, calls: Any, pass_: str) -> list[str]:
    """What was found, for the forward pass at one length; nothing elsewhere."""
    if problem.length != PROBED_LENGTH or pass_ != "forward":
        return []
    found = []
    if problem.form.causal:
        leak = future_leak(peer, problem, calls)
        if leak > 1e-5:
            found.append(f"a last key 8 times larger moves earlier outputs by {leak:.1%}")
    # Linformer and LSH attention hold float32 parts of the adapter.
    if not calls.compiles and problem.form.feature_map not in ("linformer", "lsh"):
        found.append(float16_result(calls))
    return [note for note in found if note]
