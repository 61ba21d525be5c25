"""Nsight Compute reports printed as text: a line per kernel launch, below it tables of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.shapes.ncu import Launches, add_launches, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

LAUNCH = lazy(r"^\s*(\S.*?)\s*(?:\([\d, ]+\)x\([\d, ]+\))?, Context \d+, Stream \d+\b")
METRIC = lazy(r"^\s+(\S+(?: \S+)*?)\s{2,}(?:([A-Za-z%][\w/%]*)\s+)?(-?[\d.,]+)\s*$")


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row to `kernels` per launch that has any of the metrics that are used."""
    launches: Launches = {}
    found: dict[str, float] | None = None
    for line in lines:
        text = line.full or line.text
        if m := LAUNCH.match(text):
            found = launches.setdefault((str(len(launches)), m[1]), (f"line {line.number}", {}))[1]
        elif found is not None and (m := METRIC.match(text)):
            take(found, m[1], m[2] or "", m[3])
    add_launches({k: v for k, v in launches.items() if v[1]}, out)
