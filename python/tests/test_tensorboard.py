# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's own reader on what `performer train` wrote, resumed in between."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess

import pytest
from tensorboard.backend.event_processing import event_accumulator

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build" / "performer"


def train(folder: pathlib.Path, *options: str) -> None:
    command = [str(PROGRAM), "train", "--out", str(folder / "run"), "--quiet", *options]
    subprocess.run(command, check=True, timeout=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> pathlib.Path:
    assert PROGRAM.exists(), f"{PROGRAM} is missing: scripts/build performer makes it"
    folder = tmp_path_factory.mktemp("tensorboard")
    letters = random.Random(1)
    records = (
        f">r{i}\n{''.join(letters.choices('ACDEFGHIKLMNPQRSTVWY', k=40))}\n" for i in range(60)
    )
    (folder / "data.fasta").write_text("".join(records))
    shape = "--dim 16 --num-layers 1 --num-heads 2 --ff-dim 32 --num-features 8 --length 32"
    course = "--batch-tokens 256 --log-interval 1 --eval-interval 2 --save-interval 2"
    train(folder, "--data", str(folder / "data.fasta"), "--max-steps", "5",
          "--valid-fraction", "0.2", *shape.split(), *course.split())
    # As if the first process had been killed in its last step.
    (folder / "run" / "checkpoint-5" / "model.safetensors").unlink()
    train(folder, "--resume", "auto", "--max-steps", "7")
    return folder / "run"


def test_curves_equal_the_metrics_file(run: pathlib.Path):
    reader = event_accumulator.EventAccumulator(str(run / "tensorboard"))
    reader.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key in ("loss", "lr", "grad_norm", "tokens_per_s", "peak_memory_bytes"):
        expected = [(x["step"], x[key]) for x in lines if key in x and "split" not in x]
        got = [(x.step, x.value) for x in reader.Scalars(f"train/{key}")]
        assert [step for step, _ in got] == list(range(1, 8))  # none twice
        assert [x for _, x in got] == pytest.approx([x for _, x in expected], rel=1e-6)
    valid = {x["step"]: x for x in lines if x.get("split") == "valid"}
    for key in ("loss", "perplexity", "accuracy"):
        got = {x.step: x.value for x in reader.Scalars(f"valid/{key}")}
        assert got.keys() == valid.keys()
        for step, value in got.items():
            assert value == pytest.approx(valid[step][key], rel=1e-6)
