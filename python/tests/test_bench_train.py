# SPDX-License-Identifier: Apache-2.0
"""The comparison of whole models, with stand-ins for the programs it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from train import run  # noqa: E402

PROBLEM = run.Problem("train", False, "float32", 1, 64)

# Speaks as `performer bench --stepwise` does; its times are told to it.
STAND_IN = """
import json, sys
seconds, most = float(sys.argv[1]), int(sys.argv[2])
print("a notice of some package")
print(json.dumps({"ready": True}), flush=True)
for count, _ in enumerate(sys.stdin):
    if count == most:
        sys.exit("no more steps")
    print(json.dumps({"wall_s": 10 * seconds, "cpu_s": seconds, "tokens": 64}), flush=True)
print(json.dumps({"peak_bytes": 1000}))
"""


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch):
    """Sets what each implementation's process is: seconds per step, and steps until it fails."""
    behaviour: dict[str, tuple[float, int]] = {}
    monkeypatch.setattr(
        run, "command",
        lambda impl, problem, program, data: [sys.executable, "-c", STAND_IN,
                                              *map(str, behaviour[impl])],
    )
    return behaviour


def test_rows_hold_medians_and_ratios(stand_ins):
    stand_ins |= {run.OURS: (0.5, 100), run.EXACT: (1.0, 100), run.PEER: (2.0, 100)}
    rows = run.measure(PROBLEM, Path("program"), 0, Path("data"), True)
    assert [row["impl"] for row in rows] == [run.OURS, run.EXACT, run.PEER]
    assert [row["tokens_per_s"] for row in rows] == [128, 64, 32]
    assert [row["ratio"] for row in rows] == [1, 2, 4]
    assert all(row["peak_bytes"] == 1000 and row["clock"] == "cpu" for row in rows)
    assert {"impl", "mode", "causal", "dtype", "threads", "L", "batch"} <= rows[0].keys()
    problem = run.Problem("train", False, "float32", 2, 64)
    two = run.measure(problem, Path("program"), 0, Path("data"), True)
    assert [row["tokens_per_s"] for row in two] == [12.8, 6.4, 3.2]  # by wall time


def test_failures_of_others_become_rows(stand_ins):
    stand_ins |= {run.OURS: (0.5, 100), run.EXACT: (1.0, 1), run.PEER: (2.0, 100)}
    rows = run.measure(PROBLEM, Path("program"), 0, Path("data"), True)
    assert rows[1]["tokens_per_s"] is None
    assert rows[1]["note"] == "failed: no more steps"
    text = run.table(rows)
    assert "| 128.0 / 0 | failed | 32.0 / 0 | - | 4.00 |" in text
    stand_ins[run.OURS] = (0.5, 0)
    with pytest.raises(SystemExit, match="no more steps|train, bidirectional"):
        run.measure(PROBLEM, Path("program"), 0, Path("data"), True)


def test_own_program_speaks_the_protocol():
    program = Path(__file__).parents[2] / "build" / "performer"
    assert program.exists(), f"{program} is missing: scripts/build performer makes it"
    command = run.command(run.OURS, PROBLEM, program, Path("data"))
    small = ["--dim", "16", "--num-layers", "1", "--num-heads", "2", "--num-features", "8"]
    done = subprocess.run([*command, *small], input="\n\n", capture_output=True, text=True,
                          check=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0] == {"ready": True}
    assert [line.keys() for line in lines[1:3]] == [{"wall_s", "cpu_s", "tokens"}] * 2
    assert lines[3]["repeats"] == 2 and lines[3]["L"] == 64 and lines[3]["peak_bytes"] > 0
    empty = subprocess.run([*command, *small], input="", capture_output=True, text=True,
                           timeout=300)
    assert empty.returncode == 1
    assert "standard input is empty" in empty.stderr


def test_what_would_take_hours_is_skipped_with_a_reason():
    long = run.Problem("generate", True, "float32", 1, 65536)
    assert run.reason_to_skip(run.PEER, long) == "skipped: minutes per token"
    assert run.reason_to_skip(run.OURS, long) is None
    names = [problem.name for problem in run.problems(quick=True)]
    assert "train, bidirectional, bfloat16, L = 1024, 1 thread" in names
    assert len(names) == len(set(names))
