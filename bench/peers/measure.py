# SPDX-License-Identifier: Apache-2.0
"""The process that measures one implementation with one number of threads and one allocator:

    python -m peers.measure NAME --threads N --lengths L,L,... --budget S --limit S

walks over the lengths and prints one JSON object per line, a measurement or the announcement of one
({"start": [length, pass]}). This project's kernel runs in turn with it, after it has been held
against the float64 reference at the very problem; a wrong one ends the process unmeasured."""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import os
import statistics
import sys

# Before any library makes its threads.
if __name__ == "__main__" and "--threads" in sys.argv:
    _count = int(sys.argv[sys.argv.index("--threads") + 1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-_count:])

import torch

from peers import adapters, memory, probes, reference, report
from peers.problem import D, Form, Problem, make_problem
from peers.schedule import Clock, alternate, reason_to_skip

LSH_ERROR_UP_TO = 4096  # its reference holds L x L numbers


class WrongKernel(Exception):
    pass


def head_of(problem: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    return [x[0, -1].to(dtype) for x in (problem.q, problem.k, problem.v, problem.dout)]


def last_head(calls: adapters.TorchCalls | adapters.JaxCalls, results: list) -> list[torch.Tensor]:
    return [x[0, -1] for x in calls.heads(results)]


def check_ours(problem: Problem, calls: adapters.TorchCalls, pass_: str) -> float:
    """Raises WrongKernel unless the last head is right and all others are finite; returns the
    relative error."""
    backward = pass_ == "forward_backward"
    results = getattr(calls, pass_)()
    attend = reference.linear_attention(problem.w, problem.form)
    truth = reference.results(attend, head_of(problem, torch.float64), backward)
    plain = reference.results(attend, head_of(problem, torch.float32), backward)
    got = last_head(calls, results)
    finite = all(bool(x.isfinite().all()) for x in results)
    if not finite or not reference.within_budget(got, truth, plain):
        raise WrongKernel(
            f"{problem.form.feature_map} {pass_} at L = {problem.length}: relative error "
            f"{reference.relative_error(got, truth):.2e}, plain float32 "
            f"{reference.relative_error(plain, truth):.2e}"
        )
    return reference.relative_error(got, truth)


def error_of(
    problem: Problem, calls: adapters.TorchCalls | adapters.JaxCalls, results: list, backward: bool
) -> tuple[float | None, str]:
    """The relative error of the last head, and what it is against."""
    if not all(bool(x.isfinite().all()) for x in calls.heads(results)):
        return None, "NaN or infinity in the result"
    form = problem.form
    if form.feature_map == "lsh" and problem.length > LSH_ERROR_UP_TO:
        return None, f"error not measured above L = {LSH_ERROR_UP_TO}"
    attend, name = reference.truth_of(form, problem.w)
    truth = reference.results(attend, head_of(problem, torch.float64), backward)
    if form.feature_map == "lsh" and backward:  # one gradient for queries and keys together
        truth = [truth[0], truth[2]]
    return reference.relative_error(last_head(calls, results), truth), f"error against {name}"


class Measurement:
    """One implementation over the lengths."""

    def __init__(self, peer: adapters.Peer, threads: int, budget: float, limit: float):
        self.peer, self.clock, self.budget, self.limit = peer, Clock(threads), budget, limit
        self.times: dict[str, list[tuple[int, float]]] = {p: [] for p in report.PASSES}
        self.bytes: dict[str, list[tuple[int, float]]] = {p: [] for p in report.PASSES}
        self.is_ours = peer.impl == adapters.OURS
        version = importlib.metadata.version(peer.distribution) if peer.distribution else None
        self.common = report.empty_row(peer, threads, "GLIBC_TUNABLES" in os.environ)
        self.common |= {"clock": self.clock.name, "version": version}

    def row(self, length: int, pass_: str, **values: object) -> dict:
        return self.common | {"pass": pass_, "L": length} | values

    def run(self, length: int, pass_: str, problem: Problem, w: dict[Form, torch.Tensor]) -> dict:
        reason = reason_to_skip(self.times[pass_], self.bytes[pass_], length, self.limit)
        if reason:
            return self.row(length, pass_, note=reason)
        form = problem.form.counterpart()
        twin = Problem(form, problem.q, problem.k, problem.v, problem.dout, w[form])
        ours = adapters.ours(twin)
        our_error = check_ours(twin, ours, pass_)
        if self.is_ours:
            calls = ours
        else:
            calls = self.peer.make(problem)
            if calls.compiles:
                getattr(calls, pass_)()
        call = getattr(calls, pass_)
        results, extra = memory.peak_increase(call)
        error, note = error_of(problem, calls, results, pass_ == "forward_backward")
        extra = max(0, extra - sum(x.nbytes for x in results))
        del results
        notes = [note, *probes.notes(self.peer, problem, calls, pass_)]
        if self.is_ours:
            (times,) = alternate([call], self.clock, self.budget)
            our_times = times
            assert error is not None and math.isclose(error, our_error, rel_tol=0.5)
        else:
            if form != problem.form:
                notes.append("ratio to positive features")
            times, our_times = alternate([call, getattr(ours, pass_)], self.clock, self.budget)
        median, our_median = statistics.median(times), statistics.median(our_times)
        self.times[pass_].append((length, median))
        self.bytes[pass_].append((length, extra))
        return self.row(
            length,
            pass_,
            median_s=median,
            ours_s=our_median,
            ratio=median / our_median,
            extra_bytes=extra,
            error=error,
            repeats=len(times),
            note="; ".join(notes),
        )


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--limit", type=float, required=True)
    arguments = parser.parse_args()

    import performer

    torch.set_num_threads(arguments.threads)
    # JAX brings opt_einsum, with which torch would contract in another order than it does alone.
    torch.backends.opt_einsum.enabled = False
    torch.manual_seed(0)
    (peer,) = (p for p in adapters.PEERS if p.name == arguments.name)
    measurement = Measurement(peer, arguments.threads, arguments.budget, arguments.limit)
    w = {
        form: performer.draw_projection(form.num_features, D)
        for form in (peer.form, peer.form.counterpart())
    }
    # First calls set up what a library keeps, which is not the memory of a call.
    small = make_problem(peer.form, min(256, min(arguments.lengths)), w[peer.form])
    for pass_ in report.PASSES:
        getattr(peer.make(small), pass_)()
    gc.disable()
    for length in arguments.lengths:
        problem = make_problem(peer.form, length, w[peer.form])
        for pass_ in report.PASSES:
            say({"start": [length, pass_]})
            try:
                say(measurement.run(length, pass_, problem, w))
            except WrongKernel as error:
                print(f"this project's kernel is wrong: {error}", file=sys.stderr)
                return report.WRONG_KERNEL
            except (RuntimeError, MemoryError) as error:
                text = str(error).strip() or "out of memory"
                say(measurement.row(length, pass_, note=f"failed: {text.splitlines()[0][:200]}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
