# SPDX-License-Identifier: Apache-2.0
"""Measures the implementations one after the other, each in processes of its own (peers.measure),
writes one JSON object per line and prints the tables. `scripts/bench_peers` sets up what it needs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peers import report
from peers.adapters import OURS, PEERS, Peer
from peers.schedule import MEMORY_LIMIT

LENGTHS = (256, 1024, 4096, 16384, 32768)
# Allocations of over 32 MB come from fresh pages in every call by default, which can cost more time
# than the arithmetic; a tuned allocator keeps them.
TUNED = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
TUNED_FROM = 4096


@dataclass(frozen=True)
class Effort:
    """budget: seconds of one measurement's calls; limit: seconds of the longest call made."""

    lengths: tuple[int, ...]
    threads: tuple[int, ...]
    budget: float
    limit: float


FULL = Effort(LENGTHS, (1, 2), 4.0, 60.0)
QUICK = Effort((256, 1024, 4096), (1,), 0.5, 5.0)


@dataclass(frozen=True)
class Job:
    peer: Peer
    threads: int
    tuned: bool
    lengths: tuple[int, ...]


def plan(effort: Effort, pattern: str = "") -> list[Job]:
    """This project's own kernels first, because nothing is timed if one of them is wrong."""
    jobs = []
    for threads in effort.threads:
        for peer in PEERS:
            if peer.impl != OURS and not re.search(pattern, peer.name):
                continue
            jobs.append(Job(peer, threads, False, effort.lengths))
            long = tuple(length for length in effort.lengths if length >= TUNED_FROM)
            if peer.impl != OURS and long:
                jobs.append(Job(peer, threads, True, long))
    return sorted(jobs, key=lambda job: job.peer.impl != OURS)


def environment(job: Job) -> dict[str, str]:
    variables = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    if job.tuned:
        variables["GLIBC_TUNABLES"] = TUNED
    return variables | {"OMP_NUM_THREADS": str(job.threads), "JAX_PLATFORMS": "cpu"}


def resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def lines_of(process: subprocess.Popen, silence: float) -> Iterator[str]:
    """Its lines of output. Ends it, and yields why, if it grows too large or is silent too long."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    rest, heard = b"", time.monotonic()
    while True:
        if selector.select(timeout=0.2):
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            heard = time.monotonic()
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode() for line in whole)
        reason = ""
        if resident(process.pid) > MEMORY_LIMIT:
            reason = f"ended: more than {MEMORY_LIMIT / 1e9:.0f} GB"
        elif time.monotonic() - heard > silence:
            reason = f"ended: no result within {silence:.0f} s"
        if reason:
            process.kill()
            yield json.dumps({"failed": reason})
            return


def measure(job: Job, effort: Effort) -> Iterator[dict]:
    """The rows of one process, a row with a note for whatever ended it early."""
    command = [sys.executable, "-W", "ignore", "-m", "peers.measure", job.peer.name]
    command += ["--threads", str(job.threads), "--lengths", ",".join(map(str, job.lengths))]
    command += ["--budget", str(effort.budget), "--limit", str(effort.limit)]
    at, failure = [job.lengths[0], "forward"], ""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment(job)
        )
        with process:
            for line in lines_of(process, 10 * effort.limit + 60):
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # an imported package printed it
                if "start" in row:
                    at = row["start"]
                elif "failed" in row:
                    failure = row["failed"]
                else:
                    yield row
        if process.returncode != 0:
            log.seek(0)
            text = log.read().decode(errors="replace").strip()
            if process.returncode == report.WRONG_KERNEL or job.peer.impl == OURS:
                raise SystemExit(f"bench-peers: {text or failure}")
            last = text.splitlines()[-1] if text else f"exit status {process.returncode}"
            yield report.empty_row(job.peer, job.threads, job.tuned) | {
                "pass": at[1],
                "L": at[0],
                "note": failure or f"failed: {last[:200]}",
            }


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="L up to 4096, one thread")
    parser.add_argument("--filter", default="", help="implementations whose name it is found in")
    parser.add_argument("--threads", help="comma-separated numbers of threads")
    parser.add_argument("--lengths", help="comma-separated sequence lengths")
    parser.add_argument("--json", type=Path, default=Path("build/peers.jsonl"))
    parser.add_argument("--report", action="store_true", help="only print the tables of --json")
    arguments = parser.parse_args()
    if arguments.report:
        print(report.text(report.read(arguments.json)))
        return 0
    effort = QUICK if arguments.quick else FULL
    numbers = {
        name: tuple(sorted(int(x) for x in getattr(arguments, name).split(",")))
        if getattr(arguments, name)
        else getattr(effort, name)
        for name in ("lengths", "threads")
    }
    cpus = len(os.sched_getaffinity(0))
    threads = tuple(n for n in numbers["threads"] if n <= cpus)
    effort = Effort(numbers["lengths"], threads, effort.budget, effort.limit)
    about = {"cpu": cpu_name(), "date": datetime.date.today().isoformat()}
    rows: list[dict] = []
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    unfinished = arguments.json.with_name(arguments.json.name + ".part")
    with unfinished.open("w") as file:
        for job in plan(effort, arguments.filter):
            for row in measure(job, effort):
                rows.append(row | about)
                print(json.dumps(rows[-1]), file=file, flush=True)
                print(report.line(row), file=sys.stderr, flush=True)
    unfinished.rename(arguments.json)
    print(report.text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
