# SPDX-License-Identifier: Apache-2.0
"""The memory benchmark's table: what is compared with what, and measurements that failed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from train import memory  # noqa: E402


def test_table_compares_each_way_with_its_own_model() -> None:
    rows = [{"way": way, "num_layers": 2, "L": length, "peak_bytes": 5_000_000 * (i + 1),
             "tokens_per_cpu_s": 100.0 / (i + 1)}
            for length in (10, 20) for i, way in enumerate(memory.WAYS)]
    rows[-1].pop("peak_bytes")
    lines = memory.table(rows, "L", [10, 20], {"num_layers": 2}).splitlines()
    assert lines[0] == "| | 10 tokens | 20 tokens |"
    cells = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines[2:]}
    assert list(cells) == list(memory.WAYS)
    assert cells["stored"][0] == "5 MB (1.00)"
    assert cells["checkpoint"][0] == "15 MB (3.00)"
    # The eighth way is the reversible model's own plain run.
    assert cells["reversible"][0] == f"45 MB ({9 / 8:.2f})"
    assert cells["reversible, slices"][1] == "- |"
