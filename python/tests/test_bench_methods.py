# SPDX-License-Identifier: Apache-2.0
"""The comparison of attention methods, with stand-ins for the programs it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from methods import run  # noqa: E402

# Speaks as `method_bench` does; its times are told to it.
STAND_IN = """
import json, sys
seconds, most = float(sys.argv[1]), int(sys.argv[2])
print("a notice of some package")
print(json.dumps({"ready": True}), flush=True)
for count, _ in enumerate(sys.stdin):
    if count == most:
        sys.exit("no more steps")
    print(json.dumps({"forward_wall_s": 10 * seconds, "forward_cpu_s": seconds,
                      "both_wall_s": 30 * seconds, "both_cpu_s": 3 * seconds}), flush=True)
"""


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch):
    """Sets what each implementation's process is: seconds per pass, and steps until it fails."""
    behaviour: dict[str, tuple[float, int]] = {}
    monkeypatch.setattr(
        run, "command",
        lambda impl, problem, program: [sys.executable, "-c", STAND_IN, *map(str, behaviour[impl])],
    )
    return behaviour


def test_ratios_are_the_packages_time_over_ours(stand_ins) -> None:
    stand_ins |= {"performer": (2.0, 99), "local-attention": (5.0, 99)}
    row = run.measure(run.Problem("window", True, 64, 1), Path("unused"), 0.1)
    assert (row["forward_s"], row["both_s"]) == (2.0, 6.0)
    assert (row["forward_ratio"], row["both_ratio"]) == (2.5, 2.5)
    line = run.table([row]).splitlines()[-1]
    assert line == "| window, causal | 64 | 1 | 2000.0 | 2.50 | 6000.0 | 2.50 | local-attention |"


def test_methods_without_a_package_are_measured_alone(stand_ins) -> None:
    stand_ins["performer"] = (1.0, 99)
    row = run.measure(run.Problem("centroids", False, 64, 2), Path("unused"), 0.1)
    assert row["forward_s"] == 10.0  # more threads than one: wall time
    assert row["forward_ratio"] is None
    assert "| - |" in run.table([row])


def test_a_failure_of_ours_ends_the_run(stand_ins) -> None:
    stand_ins["performer"] = (1.0, 1)
    with pytest.raises(SystemExit, match="no more steps"):
        run.measure(run.Problem("linear", False, 64, 1), Path("unused"), 0.1)


def test_every_method_is_measured_in_each_of_its_forms() -> None:
    problems = run.problems([64], [1])
    assert len(problems) == len(run.METHODS) + len(run.CAUSAL)
    assert len(set(problems)) == len(problems)
