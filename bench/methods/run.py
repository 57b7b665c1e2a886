# SPDX-License-Identifier: Apache-2.0
"""Measures every method of attention, and the public packages of three of them, in turn, and prints
a table. `scripts/bench_methods` sets up what it needs."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from peers.run import cpu_name
from train.run import Child

# Where a package has one value only, the sizes here are its own: window 64, 256 mixtures, 8 rounds.
# Buckets hold two blocks on average, so that a token meets as many keys as in the package.
METHODS = ("exact", "favor", "linear", "window", "linformer", "lsh", "clustered", "favor_clusters",
           "centroids")
CAUSAL = ("exact", "favor", "linear", "window", "lsh")
PACKAGES = {"exact": "torch SDPA", "window": "local-attention", "linformer": "linformer",
            "lsh": "reformer-pytorch"}
LIMITS = {"lsh": 8192}  # above, the package's backward pass takes minutes and gigabytes
PASSES = ("forward", "both")


@dataclass(frozen=True)
class Problem:
    method: str
    causal: bool
    length: int
    threads: int

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        return f"{self.method}, {kind}, L = {self.length}, {self.threads} thread(s)"


def problems(lengths: list[int], threads: list[int]) -> list[Problem]:
    return [
        Problem(method, causal, length, n)
        for n in threads for length in lengths for causal in (False, True) for method in METHODS
        if not causal or method in CAUSAL
    ]


def command(impl: str, problem: Problem, program: Path) -> list[str]:
    options = ["--length", str(problem.length), "--threads", str(problem.threads)]
    if problem.causal:
        options.append("--causal")
    if impl != "performer":
        return [sys.executable, "-W", "ignore", "-m", "methods.peer", problem.method, *options]
    if problem.method == "centroids":
        options += ["--window", "64"]
    if problem.method == "lsh":
        buckets = max(2, problem.length // 128)
        options += ["--hash-rounds", "8", "--hash-buckets", str(buckets + buckets % 2)]
    return [str(program), "--attention", problem.method, *options]


def measure(problem: Problem, program: Path, seconds: float) -> dict:
    """One thread is timed by CPU time, more by wall time."""
    row = {"method": problem.method, "causal": problem.causal, "L": problem.length,
           "threads": problem.threads, "package": PACKAGES.get(problem.method), "note": ""}
    children = {"performer": Child(command("performer", problem, program), problem.threads, 600)}
    if children["performer"].failure:
        raise SystemExit(f"bench-methods: {problem.name}: {children['performer'].failure}")
    if row["package"] and problem.length <= LIMITS.get(problem.method, problem.length):
        child = Child(command(row["package"], problem, program), problem.threads, 600)
        if child.failure:
            row["note"] = child.failure
        else:
            children[row["package"]] = child
    times: dict[str, list[dict]] = {impl: [] for impl in children}
    start = time.monotonic()
    while len(times["performer"]) < 3 or (
        time.monotonic() - start < seconds and len(times["performer"]) < 50
    ):
        for impl, child in children.items():
            times[impl].append(child.step())
            if child.failure:
                raise SystemExit(f"bench-methods: {problem.name}: {impl}: {child.failure}")
    for child in children.values():
        child.process.stdin.close()
        child.process.wait()
    clock = "cpu_s" if problem.threads == 1 else "wall_s"
    for pass_ in PASSES:
        medians = {impl: statistics.median(step[f"{pass_}_{clock}"] for step in steps)
                   for impl, steps in times.items()}
        ours, theirs = medians.pop("performer"), next(iter(medians.values()), None)
        row |= {f"{pass_}_s": ours, f"{pass_}_package_s": theirs,
                f"{pass_}_ratio": theirs / ours if theirs else None}
    return row


def table(rows: list[dict]) -> str:
    lines = ["| method | L | threads | forward, ms | package's / ours | forward + backward, ms "
             "| package's / ours | package |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for row in rows:
        cells = [row["method"] + (", causal" if row["causal"] else ""), str(row["L"]),
                 str(row["threads"])]
        for pass_ in PASSES:
            ratio = row[f"{pass_}_ratio"]
            cells += [f"{row[f'{pass_}_s'] * 1e3:.1f}", f"{ratio:.2f}" if ratio else "-"]
        lines.append("| " + " | ".join([*cells, row["package"] or "-"]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_methods", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="L = 1024, one thread")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--filter", default="", help="problems whose name contains it")
    parser.add_argument("--seconds", type=float, default=5, help="of each problem's repeats")
    parser.add_argument("--program", type=Path, default=Path("build/method_bench"))
    parser.add_argument("--json", type=Path, default=Path("build/methods.jsonl"))
    arguments = parser.parse_args()
    lengths = [1024] if arguments.quick else [int(x) for x in arguments.lengths.split(",")]
    rows = []
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    unfinished = arguments.json.with_name(arguments.json.name + ".part")
    with unfinished.open("w") as file:
        for problem in problems(lengths, [int(x) for x in arguments.threads.split(",")]):
            if arguments.filter not in problem.name:
                continue
            rows.append(measure(problem, arguments.program, arguments.seconds))
            print(json.dumps(rows[-1]), file=file, flush=True)
            print(f"{problem.name}: {rows[-1]['forward_s'] * 1e3:.1f} ms, "
                  f"{rows[-1]['both_s'] * 1e3:.1f} ms", file=sys.stderr, flush=True)
    unfinished.rename(arguments.json)
    print(table(rows))
    print(f"\nB = 1, H = 8, D = 64, float32; {cpu_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
