# SPDX-License-Identifier: Apache-2.0
"""Measures what training steps hold in memory and how long they take, for every way to save memory,
against depth and length. Each measurement is a process of its own, two steps, the second one timed.
`scripts/bench_memory` sets up what it needs."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

# Name, options. The last three are the same model with reversible layers, which is another one.
WAYS: dict[str, list[str]] = {
    "stored": [],
    "stored, chunks": ["--ff-chunk", "{chunk}", "--loss-chunk", "{chunk}"],
    "checkpoint": ["--activation", "checkpoint"],
    "checkpoint, chunks": ["--activation", "checkpoint", "--ff-chunk", "{chunk}", "--loss-chunk",
                           "{chunk}"],
    "slices": ["--slice-tokens", "{slice}"],
    "slices, checkpoint": ["--slice-tokens", "{slice}", "--activation", "checkpoint"],
    "slices, checkpoint, chunks": ["--slice-tokens", "{slice}", "--activation", "checkpoint",
                                   "--ff-chunk", "{chunk}", "--loss-chunk", "{chunk}"],
    "reversible, stored": ["--reversible", "--activation", "store"],
    "reversible": ["--reversible"],
    "reversible, chunks": ["--reversible", "--ff-chunk", "{chunk}", "--loss-chunk", "{chunk}"],
    "reversible, slices": ["--reversible", "--slice-tokens", "{slice}"],
}
SHAPE = ["--causal", "--dim", "256", "--num-heads", "4", "--ff-dim", "1024", "--num-features",
         "64", "--vocab-size", "2048"]


def measure(program: Path, way: str, layers: int, length: int, args: argparse.Namespace) -> dict:
    sizes = {"{chunk}": str(args.chunk), "{slice}": str(args.slice)}
    options = [sizes.get(word, word) for word in WAYS[way]]
    command = [str(program), "bench", *SHAPE, "--num-layers", str(layers), "--length", str(length),
               "--min-time", "0", "--repeats", "1", "--threads", str(args.threads), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = {"way": way, "num_layers": layers, "L": length}
    if done.returncode != 0:
        return row | {"note": done.stderr.strip().splitlines()[-1] if done.stderr else "no result"}
    return row | json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict], column: str, values: list[int], keep: dict) -> str:
    """Megabytes, and in brackets the CPU time relative to the model that stores all."""
    names = {"num_layers": "layers", "L": "tokens"}
    chosen = {(row["way"], row[column]): row for row in rows
              if all(row[key] == value for key, value in keep.items())}
    lines = ["| | " + " | ".join(f"{value:,} {names[column]}" for value in values) + " |",
             "| --- |" + " ---: |" * len(values)]
    for way in WAYS:
        plain = "reversible, stored" if way.startswith("reversible") else "stored"
        cells = []
        for value in values:
            row, base = chosen[way, value], chosen[plain, value]
            if "peak_bytes" not in row:
                cells.append("-")
                continue
            text = f"{row['peak_bytes'] / 1e6:,.0f} MB"
            if "peak_bytes" in base:
                text += f" ({base['tokens_per_cpu_s'] / row['tokens_per_cpu_s']:.2f})"
            cells.append(text)
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=Path("build/memory.jsonl"))
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 6, 12])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--slice", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    # Depth at the shortest length but one, length at the second depth.
    length = sorted(args.lengths)[min(1, len(args.lengths) - 1)]
    layers = sorted(args.layers)[min(1, len(args.layers) - 1)]
    points = sorted({(n, length) for n in args.layers} | {(layers, L) for L in args.lengths})
    rows = []
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with args.json.open("w") as out:
        for point in points:
            for way in WAYS:
                rows.append(measure(args.program, way, *point, args))
                out.write(json.dumps(rows[-1]) + "\n")
                out.flush()
                print(json.dumps(rows[-1]), flush=True)
    print(f"\nPeak memory of a training step, CPU time relative to storing all in brackets; "
          f"chunks of {args.chunk}, slices of {args.slice} tokens.\n\nL = {length:,}:\n")
    print(table(rows, "num_layers", sorted(args.layers), {"L": length}))
    print(f"\n{layers} layers:\n")
    print(table(rows, "L", sorted(args.lengths), {"num_layers": layers}))


if __name__ == "__main__":
    main()
