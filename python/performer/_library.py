# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the operator library, and turns its errors into Python's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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


@torch.library.register_fake("performer::draw_projection")
def _(
    num_rows: int,
    head_dim: int,
    kind: str = "",
    row_norm: str = "",
    seed: int = 0,
    layer: int = 0,
    head: int = 0,
    redraw: int = 0,
    compact: bool = False,
) -> torch.Tensor:
    if compact:
        columns = torch.ops.performer.compact_columns(head_dim)
        return torch.empty(num_rows, columns, dtype=torch.int32)
    return torch.empty(num_rows, head_dim)


# The messages of wrong arguments: "operator: argument is X, expected Y". Torch turns the C++
# exception behind them into a RuntimeError.
_WRONG_ARGUMENT = re.compile(r"^\w+: .*expected ", re.DOTALL)
_WRONG_TYPE = re.compile(r"^\w+: \w+ has dtype ")


def call(function: Callable[..., Any], *arguments: object, **named: object) -> Any:
    """function(...), whose wrong arguments raise ValueError, or TypeError for a wrong dtype."""
    try:
        return function(*arguments, **named)
    except RuntimeError as error:
        message = str(error)
        if not _WRONG_ARGUMENT.match(message):
            raise
        kind = TypeError if _WRONG_TYPE.match(message) else ValueError
        raise kind(message) from None
