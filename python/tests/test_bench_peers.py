# SPDX-License-Identifier: Apache-2.0
"""The comparison with other packages, as far as it needs none of them: what this project's kernels
are held against, which calls are made, how failures become rows, and the tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import performer

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from peers import adapters, measure, memory, probes, reference, report, run, schedule  # noqa: E402
from peers.problem import D, H, Form, Problem, make_problem  # noqa: E402

L = 300  # more than one chunk of the reference
FORMS = [
    Form("positive", num_features=24),
    Form("positive", causal=True, num_features=24),
    Form("relu", num_features=24, scale=0.25),
    Form("relu", causal=True, num_features=24),
]


def problem_of(form: Form) -> Problem:
    return make_problem(form, L, performer.draw_projection(form.num_features, D))


def in_float64(problem: Problem) -> Problem:
    tensors = (problem.q, problem.k, problem.v, problem.dout, problem.w)
    return Problem(problem.form, *(x.double() for x in tensors))


# ---- Nothing is timed before it is proven right --------------------------------------------------


@pytest.mark.parametrize("pass_", report.PASSES)
@pytest.mark.parametrize("form", FORMS)
def test_reference_equals_the_float64_path(form, pass_):
    problem = in_float64(problem_of(form))
    calls = adapters.ours(problem)
    got = measure.last_head(calls, getattr(calls, pass_)())
    attend = reference.linear_attention(problem.w, form)
    head = measure.head_of(problem, torch.float64)
    truth = reference.results(attend, head, pass_ == "forward_backward")
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pass_", report.PASSES)
@pytest.mark.parametrize("form", FORMS)
def test_own_kernels_pass_the_check(form, pass_):
    problem = problem_of(form)
    assert measure.check_ours(problem, adapters.ours(problem), pass_) < 1e-5


@pytest.mark.parametrize("pass_", report.PASSES)
@pytest.mark.parametrize("head, value", [(-1, 1e-3), (0, float("nan"))])
def test_a_wrong_kernel_is_refused(pass_, head, value):
    problem = problem_of(FORMS[0])
    calls = adapters.ours(problem)

    class Wrong:
        heads = calls.heads

        def __getattr__(self, name):
            results = getattr(calls, name)()
            results[0][0, head, L // 2, 3] += value
            return lambda: results

    with pytest.raises(measure.WrongKernel, match=f"{pass_} at L = {L}: relative error"):
        measure.check_ours(problem, Wrong(), pass_)


@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_has_no_error(causal):
    problem = problem_of(Form("exact", causal))
    calls = adapters.torch_sdpa(problem)
    for pass_ in report.PASSES:
        results = getattr(calls, pass_)()
        backward = pass_ == "forward_backward"
        error, note = measure.error_of(problem, calls, results, backward)
        assert error < 1e-5
        assert note == "error against exact attention in float64"


def test_shared_qk_reference_is_softmax_over_the_other_tokens():
    q, k, v = (torch.randn(5, 4, dtype=torch.float64) for _ in range(3))
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).T / 2
    scores.fill_diagonal_(-torch.inf)
    out = reference.shared_qk_attention()(q, k, v)
    torch.testing.assert_close(out, scores.softmax(-1) @ v)


def test_nan_has_no_error_but_a_note():
    problem = problem_of(Form("exact"))
    calls = adapters.torch_sdpa(problem)
    (out,) = calls.forward()
    out[0, 0, 0, 0] = torch.nan
    assert measure.error_of(problem, calls, [out], False) == (None, "NaN or infinity in the result")


def test_future_leak_is_found_and_own_causal_kernel_has_none():
    problem = problem_of(FORMS[1])
    peer = adapters.Peer("performer", problem.form, adapters.ours, "", "")
    assert probes.future_leak(peer, problem, adapters.ours(problem)) < 4e-6
    leaky = Problem(FORMS[0], problem.q, problem.k, problem.v, problem.dout, problem.w)
    assert probes.future_leak(peer, leaky, adapters.ours(leaky)) > 1e-3


# ---- Which calls are made ------------------------------------------------------------------------


def test_costs_are_predicted_by_a_power_law():
    assert schedule.predict([], 4096) == 0
    assert schedule.predict([(1024, 2.0)], 4096) == pytest.approx(32)
    assert schedule.predict([(256, 1.0), (1024, 4.0)], 4096) == pytest.approx(16)
    assert schedule.predict([(256, 1.0), (1024, 64.0)], 2048) == pytest.approx(256)
    assert schedule.predict([(256, 1.0), (1024, 2.0)], 2048) == pytest.approx(4)


def test_calls_that_are_too_large_are_skipped_with_a_reason():
    assert schedule.reason_to_skip([(1024, 1.0)], [(1024, 1e8)], 2048, 60) is None
    slow = schedule.reason_to_skip([(1024, 20.0)], [], 2048, 60)
    assert slow == "skipped: 80 s predicted, more than 60 s"
    large = schedule.reason_to_skip([], [(1024, 5e9)], 2048, 60)
    assert large == "skipped: 20 GB predicted, more than 12 GB"


def test_repeats_fit_the_budget():
    assert schedule.repeats_for(0.001, 4) == 50
    assert schedule.repeats_for(0.4, 4) == 10
    assert [schedule.repeats_for(s, 4) for s in (1.9, 9, 30)] == [5, 3, 2]


def test_calls_alternate_and_the_first_round_does_not_count(monkeypatch):
    monkeypatch.setattr(schedule, "PAUSE", 0)
    order = []
    calls = [lambda: order.append("peer"), lambda: order.append("ours")]
    times = schedule.alternate(calls, schedule.Clock(1), 0.01)
    assert order == ["peer", "ours"] * (1 + len(times[0]))
    assert len(times[0]) == len(times[1]) == 50


def test_peak_increase_sees_memory_that_a_call_frees():
    def call() -> int:
        return len(bytearray(b"x") * (64 << 20))

    result, increase = memory.peak_increase(call)
    assert result == 64 << 20
    assert 60 << 20 < increase < 80 << 20


def test_plan_starts_with_own_kernels_and_tunes_long_lengths_of_others():
    jobs = run.plan(run.FULL, "jax-favor|sdpa")
    own = [job.peer.impl == "performer" for job in jobs]
    assert own == sorted(own, reverse=True) and sum(own) == 6
    assert {job.peer.impl for job in jobs} == {"performer", "jax-favor", "torch-sdpa"}
    for job in jobs:
        assert job.lengths == ((4096, 16384, 32768) if job.tuned else run.LENGTHS)
        assert ("GLIBC_TUNABLES" in run.environment(job)) == job.tuned
    assert sum(job.tuned for job in jobs) == (len(jobs) - 6) / 2
    assert all(not job.tuned for job in run.plan(run.Effort((256,), (1,), 1, 1)))


def child(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_lines_of_a_process_and_its_silence(monkeypatch):
    with child("print(1); print(2)") as process:
        assert list(run.lines_of(process, 30)) == ["1", "2"]
    with child("import time; print(1, flush=True); time.sleep(60)") as process:
        *lines, last = run.lines_of(process, 1.5)
        assert json.loads(last) == {"failed": "ended: no result within 2 s"}
    monkeypatch.setattr(run, "MEMORY_LIMIT", 1)
    with child("import time; time.sleep(60)") as process:
        (line,) = run.lines_of(process, 30)
        assert json.loads(line)["failed"].startswith("ended: more than")


# ---- Tables --------------------------------------------------------------------------------------


def row(impl: str, length: int, ratio: float | None, **values: object) -> dict:
    peer = adapters.Peer(impl, Form("positive"), adapters.ours, "", "")
    values = {"L": length, "ratio": ratio, "median_s": ratio and ratio * 0.001} | values
    return report.empty_row(peer, 1, False) | values


def test_least_ratio_is_that_of_the_fastest_of_the_same_kind():
    rows = [
        row("performer", 1024, 1.0),
        row("a", 1024, 3.5),
        row("b", 1024, 3.0),
        row("c", 1024, None, note="failed: it"),
        row("d", 1024, 0.1, threads=2),
        row("e", 1024, 0.1, tuned_allocator=True),
        row("f", 1024, 0.1, feature_map="relu"),
        row("g", 1024, 0.1, causal=True),
        row("h", 1024, 0.1, **{"pass": "forward_backward"}),
        row("i", 4096, 0.1),
    ]
    wanted = report.WANTED[0]
    found = report.least_ratio(rows, wanted, "forward", False, lambda length: length == 1024)
    assert found["impl"] == "b"
    assert report.least_ratio([], wanted, "forward", False, lambda length: True) == {}


def test_closing_table_says_met_not_met_and_not_measured():
    table = report.closing_table(
        [row("a", 1024, 3.0), row("a", 4096, 5.0), row("b", 16384, 4.4), row("a", 32768, 9.0)]
    ).splitlines()
    assert "| softmax features | forward | L = 1024 | 2.9 | 3.00 | a | met |" in table
    assert "| softmax features | forward | L >= 4096 | 4.5 | 4.40 | b (L = 16384) | not met |" in (
        table
    )
    assert "| softmax features | forward + backward | L = 1024 | 2 | | | not measured |" in table
    assert len(table) == 2 + 3 * 6 + 2 * 4


def test_every_form_with_an_aim_has_an_implementation():
    forms = {(p.form.feature_map, p.form.causal) for p in adapters.PEERS if p.package}
    assert {(w.feature_map, w.causal) for w in report.WANTED} <= forms
    assert len({peer.name for peer in adapters.PEERS}) == len(adapters.PEERS)


def test_text_shows_times_failures_and_a_plot():
    rows = [
        row("performer", 256, 1.0),
        row("a", 256, 2.0, error=0.5, extra_bytes=3e6, note="error against x; float16 gives NaN"),
        row("a", 1024, None, note="skipped: 80 s predicted, more than 60 s"),
    ]
    rows += [r | {"pass": "forward_backward"} for r in rows]
    text = report.text(rows)
    assert "| a (positive) | 2 (2.0) | skipped |" in text
    assert "| a (positive) | 3.0 |  |" in text and "| a (positive) | 5.0e-01 |  |" in text
    assert "- a (positive): float16 gives NaN\n" in text
    assert "- a (positive): L = 1024, forward, 1 thread: skipped: 80 s" in text
    assert "error against x" not in text
    plot = report.plot([r for r in rows if r["pass"] == "forward_backward"])
    assert "A performer (positive)\nB a (positive)" in plot
    assert plot.splitlines()[0].split("|")[0].strip() == "10"
    assert plot.splitlines()[report.PLOT_ROWS].split("|")[0].strip() == "1"


def test_heads_is_shared_by_all():
    problem = problem_of(Form("exact"))
    (out,) = adapters.torch_sdpa(problem).forward()
    assert out.shape == (1, H, L, D)
