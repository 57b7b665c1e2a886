# SPDX-License-Identifier: Apache-2.0
"""The process that runs performer-pytorch's language model, once per line of standard input:

    python -m train.peer --mode train --length 1024 --batch 1 --threads 1 [--causal]

speaks as `performer bench --stepwise` does, with the same shape, data and step."""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import time
from pathlib import Path

import torch
from torch import nn

VOCABULARY, DIM, DEPTH, HEADS, FEATURES, FF_MULT = 29, 512, 6, 8, 256, 2


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def make_model(length: int, causal: bool) -> nn.Module:
    with contextlib.redirect_stdout(sys.stderr):  # a notice per causal layer
        from performer_pytorch import PerformerLM

        return PerformerLM(
            num_tokens=VOCABULARY, max_seq_len=length, dim=DIM, depth=DEPTH, heads=HEADS,
            dim_head=DIM // HEADS, causal=causal, nb_features=FEATURES, ff_mult=FF_MULT,
        )


class Work:
    """One unit of training, encoding or generating on random tokens."""

    def __init__(self, mode: str, length: int, batch: int, causal: bool, bfloat16: bool):
        torch.manual_seed(0)
        self.mode, self.bfloat16 = mode, bfloat16
        self.model = make_model(length, causal or mode == "generate")
        self.model.train(mode == "train")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.tokens = torch.randint(VOCABULARY, (batch, length))
        self.targets = torch.randint(VOCABULARY, (batch, length))
        # Its decoder has no state: every token takes a pass over all tokens before it.
        self.count = batch if mode == "generate" else batch * length

    def logits(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            return self.model(self.tokens)

    def run(self) -> None:
        if self.mode != "train":
            with torch.no_grad():
                self.logits()
            return
        self.optimizer.zero_grad()
        logits = self.logits().flatten(0, 1).float()
        nn.functional.cross_entropy(logits, self.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=("train", "encode", "generate"))
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--causal", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    idle = resident_bytes()
    work = Work(arguments.mode, arguments.length, arguments.batch, arguments.causal,
                arguments.dtype == "bfloat16")
    work.run()
    say(ready=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        work.run()
        say(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(tokens=work.count, peak_bytes=max(0, peak - idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
