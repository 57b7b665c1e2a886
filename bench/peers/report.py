# SPDX-License-Identifier: Apache-2.0
"""Rows of measurements as Markdown: tables, a plot in letters, and the ratios aimed at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.adapters import Peer

PASSES = ("forward", "forward_backward")
WRONG_KERNEL = 3  # exit status of the measuring process if this project's kernel is wrong


def empty_row(peer: Peer, threads: int, tuned: bool) -> dict:
    """The fields of every row that holds no measurement."""
    return {
        "impl": peer.impl,
        "feature_map": peer.form.feature_map,
        "causal": peer.form.causal,
        "pass": PASSES[0],
        "threads": threads,
        "L": 0,
        "tuned_allocator": tuned,
        "median_s": None,
        "ratio": None,
        "extra_bytes": None,
        "error": None,
        "note": "",
        "ours_s": None,
        "repeats": 0,
    }


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- What was aimed at: least ratios of the fastest implementation of a map, one thread ----------


@dataclass(frozen=True)
class Wanted:
    """Least ratios, forward and forward + backward, at L = 1024, from L = 4096, and from L = 4096
    with the tuned allocator."""

    label: str
    feature_map: str
    causal: bool
    at_1024: tuple[float, float]
    from_4096: tuple[float, float]
    tuned: tuple[float, float] | None = None


WANTED = (
    Wanted("softmax features", "positive", False, (2.9, 2.0), (4.5, 2.6), (2.5, 1.8)),
    Wanted("softmax features, causal", "positive", True, (3.8, 3.6), (4.4, 3.7), (4.0, 3.5)),
    Wanted("relu features", "relu", False, (1.4, 1.8), (2.5, 1.9), (2.0, 1.5)),
    Wanted("exact attention", "exact", False, (2.4, 2.6), (9.0, 10.0)),
    Wanted("exact attention, causal", "exact", True, (1.5, 1.6), (4.2, 4.6)),
)


def least_ratio(rows: Iterable[dict], wanted: Wanted, pass_: str, tuned: bool, lengths) -> dict:
    """The row of the least ratio among those that were measured; {} if there is none."""
    candidates = [
        row
        for row in rows
        if row["ratio"] is not None
        and row["impl"] != "performer"
        and (row["feature_map"], row["causal"]) == (wanted.feature_map, wanted.causal)
        and (row["pass"], row["threads"], row["tuned_allocator"]) == (pass_, 1, tuned)
        and lengths(row["L"])
    ]
    return min(candidates, key=lambda row: row["ratio"], default={})


def closing_table(rows: list[dict]) -> str:
    lines = [
        "| against the fastest of | pass | where | aim | measured | implementation | |",
        "| --- | --- | --- | ---: | ---: | --- | --- |",
    ]
    places = (
        ("L = 1024", "at_1024", False, lambda length: length == 1024),
        ("L >= 4096", "from_4096", False, lambda length: length >= 4096),
        ("L >= 4096, tuned", "tuned", True, lambda length: length >= 4096),
    )
    for wanted in WANTED:
        for where, field, tuned, lengths in places:
            if getattr(wanted, field) is None:
                continue
            for pass_, aim in zip(PASSES, getattr(wanted, field)):
                row = least_ratio(rows, wanted, pass_, tuned, lengths)
                name = f"| {wanted.label} | {words(pass_)} | {where} | {aim:g} |"
                if not row:
                    lines.append(f"{name} | | not measured |")
                    continue
                verdict = "met" if row["ratio"] >= aim else "not met"
                at = f" (L = {row['L']})" if row["L"] != 1024 else ""
                lines.append(f"{name} {row['ratio']:.2f} | {row['impl']}{at} | {verdict} |")
    return "\n".join(lines)


# ---- Tables --------------------------------------------------------------------------------------


def words(pass_: str) -> str:
    return pass_.replace("_", " + ")


def threads_of(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def name_of(row: dict) -> str:
    map_ = row["feature_map"] + (", causal" if row["causal"] else "")
    tuned = ", tuned" if row["tuned_allocator"] else ""
    return f"{row['impl']} ({map_}){tuned}"


def line(row: dict) -> str:
    """One row for a terminal."""
    head = f"{name_of(row):62}{threads_of(row['threads']):11}{row['pass']:17}L {row['L']:<6}"
    if row["median_s"] is None:
        return f"{head}{row['note']}"
    return f"{head}{row['median_s'] * 1e3:10.2f} ms  ratio {row['ratio']:7.2f}"


def table(rows: list[dict], cell) -> str:
    """Implementations down, lengths across; cell(row) is the text of one."""
    lengths = sorted({row["L"] for row in rows if row["L"]})
    names = list(dict.fromkeys(name_of(row) for row in rows))
    cells = {(name_of(row), row["L"]): cell(row) for row in rows}
    lines = [
        "| implementation | " + " | ".join(map(str, lengths)) + " |",
        "| --- |" + " ---: |" * len(lengths),
    ]
    for name in names:
        texts = [cells.get((name, length), "") for length in lengths]
        if any(texts):
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def time_cell(row: dict) -> str:
    if row["median_s"] is None:
        return row["note"].split(":")[0]
    return f"{row['median_s'] * 1e3:.3g} ({row['ratio']:.1f})"


def memory_cell(row: dict) -> str:
    return "" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.1f}"


def error_cell(row: dict) -> str:
    return "" if row["error"] is None else f"{row['error']:.1e}"


def notes(rows: list[dict]) -> str:
    """Each note once, with what it is about."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for note in row["note"].split("; "):
            if note and not note.startswith(("error against", "ratio to", "error not")):
                at = "" if note.startswith(("a last key", "float16")) else place(row)
                found[name_of(row).removesuffix(", tuned"), at + note] = None
    return "\n".join(f"- {name}: {note}" for name, note in found)


def place(row: dict) -> str:
    tuned = ", tuned" if row["tuned_allocator"] else ""
    return f"L = {row['L']}, {words(row['pass'])}, {threads_of(row['threads'])}{tuned}: "


# ---- Plot ----------------------------------------------------------------------------------------

PLOT_ROWS, PLOT_STEP = 22, 11


def plot(rows: list[dict]) -> str:
    """Microseconds per token (up, logarithmic) against L (across), a letter per implementation."""
    points = [row for row in rows if row["median_s"] is not None]
    if not points:
        return ""
    lengths = sorted({row["L"] for row in points})
    names = list(dict.fromkeys(name_of(row) for row in points))
    letters = {name: chr(ord("A") + i) for i, name in enumerate(names)}
    heights = {(name_of(r), r["L"]): math.log10(r["median_s"] / r["L"] * 1e6) for r in points}
    low, high = math.floor(min(heights.values())), math.ceil(max(heights.values()))
    high = max(high, low + 1)

    def line_of(height: float) -> int:
        return round((height - low) / (high - low) * PLOT_ROWS)

    grid = [["" for _ in lengths] for _ in range(PLOT_ROWS + 1)]
    for (name, length), height in heights.items():
        grid[PLOT_ROWS - line_of(height)][lengths.index(length)] += letters[name]
    decades = {PLOT_ROWS - line_of(n): f"{10.0**n:g}" for n in range(low, high + 1)}
    lines = []
    for i, cells in enumerate(grid):
        marks = "".join(f"{cell:^{PLOT_STEP}}" for cell in cells).rstrip()
        lines.append(f"{decades.get(i, ''):>8} |{marks}")
    lines.append(" " * 9 + "+" + "-" * PLOT_STEP * len(lengths))
    lines.append(" " * 10 + "".join(f"{length:^{PLOT_STEP}}" for length in lengths).rstrip())
    lines += [f"{letter} {name}" for name, letter in letters.items()]
    return "\n".join(lines)


# ---- All of it -----------------------------------------------------------------------------------


def text(rows: list[dict]) -> str:
    parts = []
    for threads in sorted({row["threads"] for row in rows}):
        for pass_ in PASSES:
            chosen = [r for r in rows if (r["threads"], r["pass"]) == (threads, pass_)]
            title = f"{words(pass_)}, {threads_of(threads)}"
            parts.append(f"**{title}: ms per call (ratio to this project)**")
            parts.append(table(chosen, time_cell))
    one = [r for r in rows if r["threads"] == min(row["threads"] for row in rows)]
    both = [r for r in one if r["pass"] == PASSES[1] and not r["tuned_allocator"]]
    ahead = [r for r in one if r["pass"] == PASSES[0] and not r["tuned_allocator"]]
    parts += ["**forward + backward: extra memory, MB**", table(both, memory_cell)]
    parts += ["**forward: relative error**", table(ahead, error_cell)]
    parts += ["**forward + backward: microseconds per token**", f"```\n{plot(both)}\n```"]
    parts += ["**Failures and skips**", notes(rows) or "None."]
    parts += ["**Aims, one thread**", closing_table(rows)]
    return "\n\n".join(parts)
