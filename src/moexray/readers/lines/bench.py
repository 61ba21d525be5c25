"""Benchmark results printed as text: blocks of "Name (unit): value" under a title line.

Both engines print them ("============ Serving Benchmark Result ============"); a block begins at a
title between rulers or at the first of two figures in a row, and ends at a ruler or a gap.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.cells import base, number, words
from moexray.readers.shapes.figures import figure_of, is_run

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
GAP = 3  # blank or foreign lines inside a block


def parse(lines: Iterable[Line], out: Reading) -> None:
    """Adds the figures of each block; a block after the first counts as the next run."""
    order = -1
    missed = GAP + 1
    level: float | None = None
    run: str | None = None
    for line in lines:
        text = line.text
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


def _is_level(name: str) -> bool:
    """The load that was asked for; a measured "Concurrency" is a result."""
    asked = name.startswith(("max", "traffic", "target")) or name.endswith("configured")
    return name == "request_rate" or (asked and name.endswith(("concurrency", "request_rate", "configured")))
