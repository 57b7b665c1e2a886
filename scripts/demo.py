# SPDX-License-Identifier: Apache-2.0
"""The demo: a causal Performer beside the empirical baseline, then a softmax Transformer turned into
a Performer. Every number comes from the JSON output of the command line."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import plot_loss

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Failure(Exception):
    pass


def performer(binary: pathlib.Path, *arguments: str) -> str:
    """Runs one command and returns its standard output; its log goes to ours."""
    # OpenMP's threads spin for milliseconds by default, which halves the speed or worse as soon as
    # anything else runs on the machine.
    environment = {"GOMP_SPINCOUNT": "2000", **os.environ}
    done = subprocess.run([str(binary), *arguments], stdout=subprocess.PIPE, text=True,
                          env=environment)
    if done.returncode != 0:
        raise Failure(f"`performer {arguments[0]}` ended with status {done.returncode}")
    return done.stdout


def train(binary: pathlib.Path, data: str, out: pathlib.Path, *options: str) -> dict[str, Any]:
    print(f"\n== {out.name} ==", file=sys.stderr, flush=True)
    text = performer(binary, "train", "--preset", "protein-demo", "--data", data, "--out", str(out),
                     "--force", "--json", *options)
    result = json.loads(text)
    if result["interrupted"]:
        raise Failure("interrupted")
    if "test" not in result:
        raise Failure(f"{data} has too few sequences: none fell into the test split")
    return result


def table(rows: list[tuple[str, dict[str, float]]]) -> str:
    lines = [f"{'on the test sequences':<44}{'perplexity':>12}{'accuracy':>12}"]
    for name, score in rows:
        lines.append(f"{name:<44}{score['perplexity']:>12.3f}{100 * score['accuracy']:>10.2f} %")
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> None:
    start = time.monotonic()
    binary = pathlib.Path(arguments.performer)
    out = pathlib.Path(arguments.out)
    data = arguments.data
    if data is None:
        fetch = subprocess.run([str(ROOT / "scripts/fetch_demo_data")], stdout=subprocess.PIPE,
                               text=True)
        if fetch.returncode != 0:
            raise Failure("no data; give a FASTA file of your own with --data")
        data = fetch.stdout.strip()
    out.mkdir(parents=True, exist_ok=True)

    main = train(binary, data, out / "performer", "--max-minutes", str(arguments.minutes))
    exact = train(binary, data, out / "softmax", "--attention", "exact",
                  "--max-minutes", str(arguments.minutes / 3))
    source = ["--init-from", str(out / "softmax"), "--attention", "favor"]
    swap = train(binary, data, out / "swapped", *source, "--max-steps", "0")
    few = max(1, round(exact["steps"] / 10))
    # Few steps leave no time to average out noise: each sees more tokens, at a lower rate.
    finetuned = train(binary, data, out / "finetuned", *source, "--max-steps", str(few),
                      "--warmup-steps", str(min(5, few)), "--lr", "2e-4")
    fasta = performer(binary, "generate", "--model", str(out / "performer"), "--count", "3",
                      "--max-length", "200", "--quiet")
    baseline = main["test"]["baseline"]
    summary = {
        "baseline_perplexity": baseline["perplexity"],
        "baseline_accuracy": baseline["accuracy"],
        "perplexity": main["test"]["perplexity"],
        "accuracy": main["test"]["accuracy"],
        "exact_perplexity": exact["test"]["perplexity"],
        "swap_perplexity": swap["test"]["perplexity"],
        "finetuned_perplexity": finetuned["test"]["perplexity"],
        "tokens_per_s": main["tokens_per_s"],
        "peak_memory_bytes": main["peak_memory_bytes"],
        "wall_s": time.monotonic() - start,
    }
    part = out / "summary.json.part"
    part.write_text(json.dumps(summary, indent=2) + "\n")
    part.rename(out / "summary.json")

    print()
    print(table([("empirical baseline (letter frequencies)", baseline),
                 (f"Performer, {main['steps']} steps", main["test"])]))
    print("\nThe same shape with softmax attention, and its weights moved into a Performer:")
    print(table([(f"softmax Transformer, {exact['steps']} steps", exact["test"]),
                 ("moved into a Performer, untouched", swap["test"]),
                 (f"and fine-tuned for {few} steps", finetuned["test"])]))
    print(f"\nThree sequences sampled from the Performer:\n{fasta}")
    print(f"{main['num_parameters']:,} parameters, {main['tokens_per_s']:,.0f} tokens/s in training, "
          f"peak memory {main['peak_memory_bytes'] / 1e6:.0f} MB, {summary['wall_s']:.0f} s in all")
    print(f"numbers:    {out / 'summary.json'}", flush=True)
    picture = plot_loss.plot({"Performer": out / "performer", "softmax Transformer": out / "softmax",
                              "softmax moved into a Performer": out / "finetuned"},
                             out / "loss.png")
    print(f"loss curve: {picture}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--data", help="FASTA file; without it 20,000 UniProt sequences are fetched")
    parser.add_argument("--out", default="runs/demo", help="folder of the runs [%(default)s]")
    parser.add_argument("--minutes", type=float, default=3.0,
                        help="training time of the Performer; the softmax one takes a third of it "
                             "[%(default)s]")
    parser.add_argument("--performer", default=str(ROOT / "build/performer"),
                        help="the program [%(default)s]")
    try:
        run(parser.parse_args())
    except (Failure, OSError) as failure:
        print(f"demo: error: {failure}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        print(f"demo: error: no loss curve: {missing} (scripts/setup installs it)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
