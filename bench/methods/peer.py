# SPDX-License-Identifier: Apache-2.0
"""The process that runs another package's attention, once per line of standard input:

    python -m methods.peer window --length 1024 --threads 1 [--causal]

speaks as `method_bench` does, on tensors of the same shapes. Linear layers around the attention are
left out (peers.adapters)."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable

import torch

from peers import adapters
from peers.problem import Form, Problem, make_problem

WINDOW, ROUNDS, BLOCK = 64, 8, 64


def local_attention(problem: Problem) -> adapters.TorchCalls:
    from local_attention import LocalAttention

    attention = LocalAttention(
        WINDOW, causal=problem.form.causal, autopad=True, use_rotary_pos_emb=False
    )
    return adapters.TorchCalls(attention, problem)


def reformer(problem: Problem) -> adapters.TorchCalls:
    from reformer_pytorch import LSHAttention

    attention = LSHAttention(bucket_size=BLOCK, n_hashes=ROUNDS, causal=problem.form.causal)
    return adapters.TorchCalls(
        lambda qk, v: attention(qk, v)[0],
        problem,
        [problem.q[0], problem.v[0]],
        problem.dout[0],
        lambda x: x[None],
    )


PACKAGES: dict[str, Callable[[Problem], adapters.TorchCalls]] = {
    "window": local_attention,
    "linformer": adapters.linformer,
    "lsh": reformer,
    "exact": adapters.torch_sdpa,
}


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    del result
    return seconds


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=PACKAGES)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--causal", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    form = Form(arguments.method, causal=arguments.causal)
    with contextlib.redirect_stdout(sys.stderr):
        calls = PACKAGES[arguments.method](make_problem(form, arguments.length, torch.empty(0)))
        calls.forward()
        calls.forward_backward()
    say(ready=True)
    for _ in sys.stdin:
        forward, both = seconds_of(calls.forward), seconds_of(calls.forward_backward)
        say(forward_wall_s=forward[0], forward_cpu_s=forward[1],
            both_wall_s=both[0], both_cpu_s=both[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
