# SPDX-License-Identifier: Apache-2.0
"""Which calls are too large to make, how often the others are repeated, and how two alternate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

MEMORY_LIMIT = 12 * 10**9


def predict(history: list[tuple[int, float]], length: int) -> float:
    """What a cost measured at growing lengths will be at `length`: a power law through the last two
    points, of order 1 to 2; quadratic from a single point, and 0 from none."""
    if not history:
        return 0.0
    last_length, last = history[-1]
    order = 2.0
    if len(history) > 1 and history[-2][1] > 0 and last > 0:
        before_length, before = history[-2]
        order = math.log(last / before) / math.log(last_length / before_length)
        order = min(2.0, max(1.0, order))
    return last * (length / last_length) ** order


def reason_to_skip(
    times: list[tuple[int, float]],
    bytes_: list[tuple[int, float]],
    length: int,
    time_limit: float,
) -> str | None:
    """Why a call is not made, or None."""
    seconds, size = predict(times, length), predict(bytes_, length)
    if seconds > time_limit:
        return f"skipped: {seconds:.0f} s predicted, more than {time_limit:.0f} s"
    if size > MEMORY_LIMIT:
        return f"skipped: {size / 1e9:.0f} GB predicted, more than {MEMORY_LIMIT / 1e9:.0f} GB"
    return None


# Seconds after a call, and what part of its own time at least: until the threads of one library
# have freed what it left and stopped spinning, which would be counted for the next call. JAX's cost
# the next one an eighth of its time.
PAUSE, PAUSED_PART = 0.02, 0.25


@dataclass(frozen=True)
class Clock:
    """One thread is timed by the CPU time of the process, which leaves out the spells in which a
    shared machine ran something else; more threads by wall time."""

    threads: int

    @property
    def name(self) -> str:
        return "cpu" if self.threads == 1 else "wall"

    def time(self, call: Callable[[], object]) -> float:
        read = time.process_time if self.threads == 1 else time.perf_counter
        start = read()
        result = call()
        elapsed = read() - start
        del result
        time.sleep(max(PAUSE, min(1.0, PAUSED_PART * elapsed)))
        return elapsed


def repeats_for(seconds: float, budget: float) -> int:
    """Repeats of a round that takes `seconds`: as many as fit the budget, from 5 to 50; 3 or 2
    where a round is long."""
    least = 5 if seconds < 2 else 3 if seconds < 10 else 2
    return max(least, min(50, int(budget / max(seconds, 1e-9))))


def alternate(
    calls: list[Callable[[], object]], clock: Clock, budget: float
) -> list[list[float]]:
    """Times of each call, called in turn: whatever slows the machine slows all. The first round
    warms up, and decides on the number of rounds; only if it is long does it count itself."""
    first = [clock.time(call) for call in calls]
    rounds = repeats_for(sum(first), budget)
    times: list[list[float]] = [[t] for t in first] if sum(first) > 10 else [[] for _ in calls]
    while len(times[0]) < rounds:
        for call, list_ in zip(calls, times):
            list_.append(clock.time(call))
    return times
