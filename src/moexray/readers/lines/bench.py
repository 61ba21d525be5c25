"""Benchmark results printed as text: blocks of "Name (unit): value" under a title line.

Both engines print them ("============ Serving Benchmark Result ============"); a block begins at a
title between rulers or at the first of two figures in a row, and ends at a ruler or a gap.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.cells import base, number, words
from moexray.readers.shapes.figures import figure_of, is_run, stat_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]


TITLE = lazy(r"^[=*#-]{3,}\s*(.*?(?:benchmark|results?\b).*?)\s*[=*#-]{3,}$", re.IGNORECASE)
RULER = lazy(r"^[=]{8,}$")
ENTRY = lazy(
    r"^\s*([A-Za-z][\w .,%/()\[\]-]{1,60}?)\s*:\s+(-?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)\s*([A-Za-z/%]*)\s*$"
)
NAMED = lazy(r"^\s*([A-Za-z][\w ()-]{1,40}?)\s*:\s+(\S.*?)\s*$")
BARS = ("\u2502", "\u2503", "|")
BAR = lazy("[\u2502\u2503|]")
GAP = 3  # blank or foreign lines inside a block


def parse(lines: Iterable[Line], out: Reading) -> None:
    """Adds the figures of each block; a block after the first counts as the next run."""
    order = -1
    missed = GAP + 1
    level: float | None = None
    run: str | None = None
    head: list[str] = []
    for line in lines:
        text = line.text
        if text.lstrip()[:1] in BARS:
            head = _box(line, head, out)
            continue
        if text.count("|") > GAP:
            head = _row(line, head, out)
            continue
        if text[:1] in "=*#-" and TITLE.match(text):
            order, missed, level, run = order + 1, 0, None, None
            out.rows += 1
            continue
        if order < 0 or missed > GAP:
            continue
        if RULER.match(text):
            missed = GAP + 1
            continue
        entry = ENTRY.match(text)
        value = number(entry[2].replace(",", "")) if entry else None
        if entry is None or value is None:
            if (m := NAMED.match(text)) and is_run(m[1]):
                run = f"{run} {m[2]}" if run else m[2][:60]
            missed += not text.startswith("-")
            continue
        missed = 0
        name = entry[1]
        if _is_level(words(name)):
            level = value if level is None or "concurrency" in name.lower() else level
            continue
        figure = figure_of(name, entry[3] or None)
        if figure is None:
            continue
        scale = figure[1] if figure[1] is not None else 1e-3 if value >= 5 else 1.0
        out.add("bench", where=f"line {line.number}", run=run, level=level, order=order, figure=figure[0],
                value=base(value, scale))


def _box(line: Line, head: list[str], out: Reading) -> list[str]:
    """A row of a drawn table: "│ Inter Token Latency (ms) │ 23.0 │ ..." below a row of stats; the header."""
    cells = [c.strip() for c in BAR.split(line.text.strip())[1:-1]]
    stats = [stat_of(words(c)) for c in cells[1:]]
    if len(cells) > 1 and sum(bool(stat) and not rest for stat, rest in stats) > len(cells) / 2:
        return cells
    if len(head) != len(cells):
        return head
    for stat, cell in zip(head[1:], cells[1:], strict=True):
        value, figure = number(cell.replace(",", "")), figure_of(f"{stat} {cells[0]}")
        if value is not None and figure is not None and stat_of(words(stat))[0] != "std":
            scale = figure[1] if figure[1] is not None else 1e-3 if value >= 5 else 1.0
            out.add("bench", where=f"line {line.number}", order=0, figure=figure[0], value=base(value, scale))
    return head


def _row(line: Line, head: list[str], out: Reading) -> list[str]:
    """A row per run below one or two rows of names ("ITL (ms) |||" over "mean| median| p99"); the header."""
    cells = [c.strip() for c in line.text.split("|")]
    values = [number(c.replace(",", "")) for c in cells]
    if not any(c.strip("-: ") for c in cells):
        return head
    if not any(v is not None for v in values):
        if len(head) != len(cells):
            return cells
        top: list[str] = []
        for name in head:
            top.append(name or (top[-1] if top else ""))
        return [f"{name} {above}" for name, above in zip(cells, top, strict=True)]
    if len(head) != len(cells):
        return head
    for name, value in zip(head[1:], values[1:], strict=True):
        figure = figure_of(name) if value is not None else None
        if value is None or figure is None or stat_of(words(name))[0] == "std":
            continue
        scale = figure[1] if figure[1] is not None else 1e-3 if value >= 5 else 1.0
        run = cells[0] or None
        out.add("bench", where=f"line {line.number}", run=run, order=line.number, figure=figure[0],
                value=base(value, scale))
    return head


def _is_level(name: str) -> bool:
    """The load that was asked for; a measured "Concurrency" is a result."""
    asked = name.startswith(("max", "traffic", "target")) or name.endswith("configured")
    return name == "request_rate" or (asked and name.endswith(("concurrency", "request_rate", "configured")))
