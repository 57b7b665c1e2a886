# SPDX-License-Identifier: Apache-2.0
"""Measures whole models: training, encoding, embedding and generating with this project's program,
with its softmax twin and with performer-pytorch, in turn, and prints tables. `scripts/bench_train`
sets up what it needs."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from peers.run import MEMORY_LIMIT, cpu_name, lines_of

PROTEINS, GROUPS = 2000, 40  # embedded a group per repeat
OURS, EXACT, PEER = "performer", "performer (exact)", "performer-pytorch"


@dataclass(frozen=True)
class Problem:
    mode: str
    causal: bool
    dtype: str
    threads: int
    length: int
    batch: int = 1

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.mode == "embed":
            return f"embed, {self.batch:,} proteins, {kind}, {self.dtype}, {threads}"
        return f"{self.mode}, {kind}, {self.dtype}, L = {self.length}, {threads}"


def problems(quick: bool) -> list[Problem]:
    lengths = (1024,) if quick else (1024, 8192)
    threads = (1,) if quick else (1, 2)
    result = [
        Problem(mode, False, dtype, n, length)
        for n in threads for length in lengths
        for dtype in ("float32", "bfloat16") for mode in ("train", "encode")
    ]
    result += [Problem("train", True, dtype, n, length) for n in threads for length in lengths
               for dtype in ("float32", "bfloat16")]
    result += [Problem("embed", False, "float32", n, 0, PROTEINS) for n in threads]
    contexts = (1, 1000) if quick else (1, 1000, 4096, 1_000_000)
    return result + [Problem("generate", True, "float32", 1, context) for context in contexts]


def command(impl: str, problem: Problem, program: Path, data: Path) -> list[str]:
    options = ["--mode", problem.mode, "--threads", str(problem.threads), "--dtype", problem.dtype]
    if problem.mode == "embed":
        options += ["--data", str(data), "--proteins", str(problem.batch), "--groups", str(GROUPS)]
    else:
        options += ["--length", str(problem.length), "--batch", str(problem.batch)]
    if problem.causal:
        options.append("--causal")
    if impl == PEER:
        return [sys.executable, "-W", "ignore", "-m", "train.peer", *options]
    attention = "favor" if impl == OURS else "exact"
    return [str(program), "bench", "--stepwise", "--attention", attention, *options]


def reason_to_skip(impl: str, problem: Problem) -> str | None:
    if impl == PEER and problem.mode == "generate" and problem.length > 4096:
        return "skipped: minutes per token"
    if impl == PEER and problem.causal and problem.mode == "train" and problem.length > 1024:
        return "skipped: more than 12 GB predicted"
    if impl == EXACT and problem.mode == "generate" and problem.length > 4096:
        return "skipped: its state grows with the context"
    return None


class Child:
    """A process that runs its unit of work once per line."""

    def __init__(self, arguments: list[str], threads: int, silence: float):
        self.log = tempfile.TemporaryFile()
        cpus = sorted(os.sched_getaffinity(0))[-threads:]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        self.lines = lines_of(self.process, silence)
        self.failure = None if self.read() == {"ready": True} else self.why()

    def read(self) -> dict:
        for line in self.lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # an imported package printed it
            if "failed" in row:
                self.failure = row["failed"]
                return {}
            return row
        return {}

    def why(self) -> str:
        self.process.wait()
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        last = text.splitlines()[-1] if text else f"exit status {self.process.returncode}"
        return getattr(self, "failure", None) or f"failed: {last[:200]}"

    def step(self) -> dict:
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        row = self.read()
        if not row:
            self.failure = self.why()
        return row

    def finish(self) -> dict:
        self.process.stdin.close()
        row = self.read()
        self.process.wait()
        return row


def measure(problem: Problem, program: Path, seconds: float, data: Path, quick: bool) -> list[dict]:
    """A row per implementation. One thread is timed by CPU time, which leaves out what else a
    shared machine ran; more threads by wall time. A quick run embeds some of the proteins."""
    children, rows = {}, []
    common = {"mode": problem.mode, "causal": problem.causal, "dtype": problem.dtype,
              "threads": problem.threads, "L": problem.length, "batch": problem.batch}
    clock = "cpu_s" if problem.threads == 1 else "wall_s"
    empty = {"tokens_per_s": None, "peak_bytes": None, "ratio": None, "clock": clock[:-2]}
    for impl in (OURS, EXACT, PEER):
        note = reason_to_skip(impl, problem)
        if note is None:
            child = Child(command(impl, problem, program, data), problem.threads, 600)
            if child.failure is None:
                children[impl] = child
                continue
            if impl == OURS:
                raise SystemExit(f"bench-train: {problem.name}: {child.failure}")
            note = child.failure
        rows.append({"impl": impl} | common | empty | {"note": note})
    times: dict[str, list[float]] = {impl: [] for impl in children}  # seconds per token
    start = time.monotonic()
    least = GROUPS if problem.mode == "embed" and not quick else 3
    while (count := len(times[OURS])) < least or (time.monotonic() - start < seconds
                                                  and count < 50):
        for impl, child in list(children.items()):
            row = child.step()
            if child.failure is not None:
                if impl == OURS:
                    raise SystemExit(f"bench-train: {problem.name}: {child.failure}")
                rows.append({"impl": impl} | common | empty | {"note": child.failure})
                del children[impl]
                continue
            times[impl].append(row[clock] / row["tokens"])
    ours = statistics.median(times[OURS])
    for impl, child in children.items():
        median = statistics.median(times[impl])
        last = child.finish()
        rows.append({"impl": impl} | common | {
            "tokens_per_s": 1 / median,
            "peak_bytes": last.get("peak_bytes"),
            "ratio": median / ours,
            "clock": clock[:-2],
            "note": "",
        })
        if last.get("bound_s") is not None:
            rows[-1] |= {"bound_s": last["bound_s"] / problem.batch}
    return sorted(rows, key=lambda row: (OURS, EXACT, PEER).index(row["impl"]))


def bounds(rows: list[dict]) -> str:
    """Generation beside what no generation with these weights can beat."""
    lines = ["| one token after | ms | reading weights and state once, ms | ratio |",
             "| ---: | ---: | ---: | ---: |"]
    for row in rows:
        if row["impl"] != OURS or row.get("bound_s") is None:
            continue
        token, bound = 1e3 / row["tokens_per_s"], 1e3 * row["bound_s"]
        lines.append(f"| {row['L']:,} | {token:.2f} | {bound:.2f} | {token / bound:.2f} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def read_bandwidth() -> float:
    """Bytes per second of one thread that sums 512 MiB: the best of several passes."""
    import torch

    torch.set_num_threads(1)
    numbers = torch.ones(1 << 27)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - start)
    return numbers.nbytes / best


def table(rows: list[dict]) -> str:
    def cell(row: dict) -> str:
        if row["tokens_per_s"] is None:
            return row["note"].split(":")[0]
        memory = row["peak_bytes"] / 1e6 if row["peak_bytes"] is not None else float("nan")
        return f"{row['tokens_per_s']:,.1f} / {memory:,.0f}"

    lines = ["| work | ours: tokens/s / MB | softmax twin | performer-pytorch | twin's time / ours "
             "| peer's time / ours |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    keys = ("mode", "causal", "dtype", "threads", "L", "batch")
    groups: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), {})[row["impl"]] = row
    for key, group in groups.items():
        name = Problem(*key).name
        ratios = ["-" if group[impl]["ratio"] is None else f"{group[impl]['ratio']:.2f}"
                  for impl in (EXACT, PEER)]
        cells = [cell(group[impl]) for impl in (OURS, EXACT, PEER)]
        lines.append("| " + " | ".join([name, *cells, *ratios]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_train", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="L = 1024, one thread")
    parser.add_argument("--filter", default="", help="problems whose name contains it")
    parser.add_argument("--seconds", type=float, default=20, help="of each problem's repeats")
    parser.add_argument("--program", type=Path, default=Path("build/performer"))
    parser.add_argument("--data", type=Path, default=Path("data/demo/proteins.fasta.gz"),
                        help="proteins to embed, as scripts/fetch_demo_data leaves them")
    parser.add_argument("--json", type=Path, default=Path("build/train.jsonl"))
    arguments = parser.parse_args()
    cpus = len(os.sched_getaffinity(0))
    rows: list[dict] = []
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    unfinished = arguments.json.with_name(arguments.json.name + ".part")
    with unfinished.open("w") as file:
        for problem in problems(arguments.quick):
            if arguments.filter not in problem.name or problem.threads > cpus:
                continue
            for row in measure(problem, arguments.program, arguments.seconds, arguments.data,
                               arguments.quick):
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                speed = row["tokens_per_s"]
                print(f"{problem.name}: {row['impl']}: "
                      + (row["note"] if speed is None else f"{speed:,.1f} tokens/s"),
                      file=sys.stderr, flush=True)
    unfinished.rename(arguments.json)
    print(table(rows))
    if bounds(rows):
        print(f"\n{bounds(rows)}")
    print(f"\n{cpu_name()}; memory is read with {read_bandwidth() / 1e9:.1f} GB/s by one thread")
    return 0


if __name__ == "__main__":
    sys.exit(main())
