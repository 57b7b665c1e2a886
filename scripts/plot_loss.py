# SPDX-License-Identifier: Apache-2.0
"""Draws the loss curves of runs from their metrics.jsonl.

    plot_loss.py OUT.png RUN [RUN ...]
"""

from __future__ import annotations

import json
import pathlib
import sys


def read_metrics(run: pathlib.Path) -> tuple[list[dict], list[dict]]:
    """Training lines and evaluation lines of one run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [x for x in lines if "lr" in x], [x for x in lines if "split" in x]


def plot(runs: dict[str, pathlib.Path], picture: pathlib.Path) -> pathlib.Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    baseline = None
    for index, (name, run) in enumerate(runs.items()):
        training, evaluations = read_metrics(run)
        color = f"C{index}"
        axes.plot([x["step"] for x in training], [x["loss"] for x in training], color=color,
                  alpha=0.35, linewidth=1)
        valid = [x for x in evaluations if x["split"] == "valid"]
        axes.plot([x["step"] for x in valid], [x["loss"] for x in valid], color=color, marker="o",
                  markersize=3, label=name)
        if valid:
            baseline = valid[-1]["baseline_loss"]
    if baseline is not None:
        axes.axhline(baseline, color="0.4", linestyle="--", linewidth=1, label="empirical baseline")
        axes.set_ylim(top=baseline + 0.1)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("loss (nats per residue)")
    axes.set_title("training (thin) and validation loss")
    axes.legend()
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
    return picture


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    runs = [pathlib.Path(argument) for argument in sys.argv[2:]]
    print(plot({str(run): run for run in runs}, pathlib.Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
