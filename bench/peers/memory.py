# SPDX-License-Identifier: Apache-2.0
"""Peak memory of one call, from what Linux says of this process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def peak_increase(call: Callable[[], T]) -> tuple[T, int]:
    """The result of call() and by how many bytes the resident set grew at most during it. What
    earlier calls freed is given back first, so that it cannot serve this one unseen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at the present size
    result = call()
    return result, max(0, _status("VmHWM") - before)
