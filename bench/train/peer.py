# SPDX-License-Identifier: Apache-2.0
"""The process that runs performer-pytorch's language model, once per line of standard input:

    python -m train.peer --mode train --length 1024 --batch 1 --threads 1 [--causal]
    python -m train.peer --mode embed --data proteins.fasta.gz --proteins 2000 --groups 20

speaks as `performer bench --stepwise` does, with the same shape, data and step."""

from __future__ import annotations

import argparse
import contextlib
import gzip
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

    def run(self) -> int:
        if self.mode != "train":
            with torch.no_grad():
                self.logits()
            return self.count
        self.optimizer.zero_grad()
        logits = self.logits().flatten(0, 1).float()
        nn.functional.cross_entropy(logits, self.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return self.count


def first_proteins(path: Path, count: int) -> list[str]:
    """The residues of the first records that have any."""
    proteins: list[str] = []
    residues: list[str] = []
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        for line in file:
            if not line.startswith(">"):
                residues.append(line.strip().upper())
                continue
            if any(residues):
                proteins.append("".join(residues))
            residues = []
            if len(proteins) == count:
                return proteins
    return [*proteins, "".join(residues)] if any(residues) else proteins


class Embedding:
    """Mean vectors of real proteins, a group at a time. A batch is filled up with padding, which
    this model's mask keeps out of values only."""

    def __init__(self, path: Path, count: int, groups: int, batch_tokens: int, bfloat16: bool):
        torch.manual_seed(0)
        proteins = sorted(first_proteins(path, count), key=len, reverse=True)
        if len(proteins) < count:
            raise SystemExit(f"{path} holds {len(proteins)} proteins, expected at least {count}")
        # Longest first, rows times the longest within batch_tokens.
        batches: list[list[str]] = []
        for protein in proteins:
            if not batches or (len(batches[-1]) + 1) * (len(batches[-1][0]) + 2) > batch_tokens:
                batches.append([])
            batches[-1].append(protein)
        self.groups = [batches[i::groups] for i in range(groups)]
        self.bfloat16, self.next = bfloat16, 0
        self.model = make_model(len(proteins[0]) + 2, causal=False).eval()

    def run(self) -> int:
        group = self.groups[self.next]
        self.next = (self.next + 1) % len(self.groups)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            for batch in group:
                lengths = [len(protein) + 2 for protein in batch]
                tokens = torch.full((len(batch), lengths[0]), VOCABULARY - 2)
                for row, protein in enumerate(batch):
                    letters = torch.tensor([ord(letter) - ord("A") for letter in protein])
                    tokens[row, 0], tokens[row, lengths[row] - 1] = VOCABULARY - 4, VOCABULARY - 3
                    tokens[row, 1:lengths[row] - 1] = letters.clamp(0, VOCABULARY - 5)
                mask = torch.arange(lengths[0]) < torch.tensor(lengths).unsqueeze(1)
                hidden = self.model(tokens, mask=mask, return_encodings=True)
                for row, length in enumerate(lengths):
                    hidden[row, 1:length - 1].float().mean(0)
        return sum(len(protein) for batch in group for protein in batch)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=("train", "encode", "generate", "embed"))
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--proteins", type=int, default=2000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--causal", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    idle = resident_bytes()
    bfloat16 = arguments.dtype == "bfloat16"
    if arguments.mode == "embed":
        work = Embedding(arguments.data, arguments.proteins, arguments.groups,
                         arguments.batch_tokens, bfloat16)
    else:
        work = Work(arguments.mode, arguments.length, arguments.batch, arguments.causal, bfloat16)
    work.run()
    say(ready=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = work.run()
        say(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, tokens=tokens)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(peak_bytes=max(0, peak - idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
