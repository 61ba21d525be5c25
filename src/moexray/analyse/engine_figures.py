"""The balancedness that an engine logs beside that of its counts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.analyse.routing_figures import Figures
    from moexray.core.run import Row, Run

__all__ = ["EngineFigure", "engine_figures"]

APART = 0.05  # of balancedness, from which two figures disagree; verdict catalogue (ep.metric_wrong_axis)


@dataclass(frozen=True, slots=True)
class EngineFigure:
    """Logged figures of one file against the counts of one load.

    Args:
        source: The log.
        counts: The file of the counts.
        lines: Lines that have counts of their step.
        logged: Median of their figures.
        recomputed: Median of mean/max over EP ranks of the same steps, as the mean over layers or by their
            time, whichever is nearer to the logged one.
        agree: They are within APART in most lines.
    """

    source: str
    counts: str
    lines: int
    logged: float
    recomputed: float
    agree: bool


def engine_figures(run: Run, loads: list[Figures]) -> list[EngineFigure]:
    """One row for each log with balancedness lines and each load over ranks with counts of their steps."""
    out = []
    for source, rows in run.by_source("log"):
        balance = (r for r in rows if r["kind"] == "eplb.balance")
        lines = [r for r in balance if _figure(r) and not r["fields"].get("dummy")]
        for f in loads if lines else ():
            pairs = list(_pairs(lines, f))
            if pairs:
                near = sum(abs(a - b) <= APART for a, b in pairs)
                logged, made = (median(x) for x in zip(*pairs, strict=True))
                out.append(
                    EngineFigure(source, f.load.source, len(pairs), logged, made, agree=2 * near > len(pairs))
                )
    return out


def _figure(row: Row) -> float | None:
    value = (row["fields"] or {}).get("balancedness")
    return float(value) if isinstance(value, int | float) else None


def _pairs(lines: list[Row], f: Figures) -> Iterator[tuple[float, float]]:
    """(logged, recomputed) for each line; all steps where these have no numbers."""
    if f.ranks is None or not f.load.ordered:
        return
    steps, before = f.load.steps, -1.0
    for row in lines:
        logged, step = _figure(row) or 0.0, row["fields"].get("step")
        used = np.ones(len(steps), bool)
        if f.load.attrs.get("labelled") and isinstance(step, int | float):
            used = steps == step if (steps == step).any() else (steps > before) & (steps <= step)
            before = float(step)
        cube = f.ranks.tokens[used].sum(axis=0)
        cube = cube[cube.sum(axis=1) > 0]
        if len(cube):
            tops = cube.max(axis=1)
            both = float((cube.mean(axis=1) / tops).mean()), float(cube.mean(axis=1).sum() / tops.sum())
            yield logged, min(both, key=lambda v: abs(v - logged))
