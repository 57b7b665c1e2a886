# SPDX-License-Identifier: Apache-2.0
"""The examples of the README run as they stand; its day with a protein model in less time."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_example_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "__main__"})


def test_there_are_examples():
    assert BLOCKS


def test_day_with_a_protein_model(tmp_path):
    (script,) = re.findall(r"^```sh day\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert (ROOT / "build" / "performer").exists(), "scripts/build performer makes the program"
    letters = random.Random(1)
    sequences = ["".join(letters.choices("ACDEFGHIKLMNPQRSTVWY", k=40)) for _ in range(120)]
    records = [f">protein{i} number {i}\n{text}\n" for i, text in enumerate(sequences)]
    (tmp_path / "proteins.fasta").write_text("".join(records))
    (tmp_path / "protein.fasta").write_text(records[0])
    first = sequences[0][0]
    (tmp_path / "mutants.csv").write_text(f"name,mutant\na,{first}1W\nb,{first}1C\n")
    script = script.replace("--max-steps 2000", "--max-steps 3 --batch-tokens 1K --valid-fraction 0.1")
    script = script.replace("-o proteins.tokens ", "-o proteins.tokens --test-fraction 0.1 ")
    path = f"{ROOT / 'build'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, timeout=600, text=True,
                          capture_output=True, env=os.environ | {"PATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    ranked = (tmp_path / "ranked.csv").read_text().splitlines()
    assert len(ranked) == 3 and ranked[1].startswith(f"a,{first}1W,")
    assert (tmp_path / "scores.tsv").read_text().count("\n") == 121
    assert (tmp_path / "designs.fasta").read_text().count(">") == 5
    assert (tmp_path / "thrice.fasta").read_text().count(">") == 3
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text()
    for name in ("embeddings/index.tsv", "residues.tsv", "runs/masked/attention/similarity.tsv"):
        assert (tmp_path / name).exists(), name
