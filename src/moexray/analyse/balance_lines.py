"""Balancedness and countdown as an engine logs them, cut at its rearrangements.

The logged figure is taken as it stands: whether it is computed over the right axis is a question of
its own (ep.metric_wrong_axis).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

from moexray.analyse.engine_log import Episode, rearrangements

if TYPE_CHECKING:
    from moexray.core.run import Row, Run

__all__ = ["Balance", "Countdown", "balances", "countdowns"]

LEAST_LINES = 3  # lines that a stretch needs for its mean


@dataclass(frozen=True, slots=True)
class Balance:
    """What one log says of balance.

    Args:
        source: File.
        before: Mean balancedness before the first completed rearrangement.
        after: Mean after the last one that enough lines follow; None if there is none.
        lowest, highest: Of the means of the stretches.
        lines: Balancedness lines used.
        moves: Rearrangements while serving.
        interval_s: Median time between their starts; None for fewer than two.
        cost_s: Mean duration of a move; None if the log does not tell.
        first, last: Lines to quote.
    """

    source: str
    before: float
    after: float | None
    lowest: float
    highest: float
    lines: int
    moves: tuple[Episode, ...]
    interval_s: float | None
    cost_s: float | None
    first: Row
    last: Row


def balances(run: Run) -> list[Balance]:
    """The balance of each log that has balancedness lines of real batches."""
    moves = rearrangements(run)
    out = []
    for source, rows in run.by_source("log"):
        lines = [r for r in rows if _counts(r)]
        if len(lines) < LEAST_LINES:
            continue
        own = [m for m in moves if m.source == source]
        ends = sorted(m.rows[-1]["line"] for m in own if m.rows)
        stretches: dict[int, list[float]] = {}
        for r in lines:
            stretch = bisect_right(ends, r["line"])
            stretches.setdefault(stretch, []).append(float(r["fields"]["balancedness"]))
        solid = {k: mean(v) for k, v in stretches.items() if len(v) >= LEAST_LINES}
        if not solid:
            solid = {0: mean([v for vs in stretches.values() for v in vs])}
        first, last = min(solid), max(solid)
        gaps = [b.start_s - a.start_s for a, b in pairwise(own) if a.clock == b.clock]
        taken = [m.seconds for m in own if m.seconds is not None]
        out.append(
            Balance(
                source,
                solid[first],
                solid[last] if last > first else None,
                min(solid.values()),
                max(solid.values()),
                len(lines),
                tuple(own),
                median(gaps) if gaps else None,
                mean(taken) if taken else None,
                lines[0],
                lines[-1],
            )
        )
    return out


@dataclass(frozen=True, slots=True)
class Countdown:
    """The countdown lines of one worker at the end of a log, from where they went below zero.

    Args:
        source: File.
        lines: The last lines in a row with a negative countdown, each lower than the one before.
        interval: The largest countdown seen: the steps between two rearrangements.
        completed: A completion line, or the arrival of a layer, stands after the first of them.
    """

    source: str
    lines: tuple[Row, ...]
    interval: int
    completed: bool


def countdowns(run: Run) -> list[Countdown]:
    """The falling negative countdowns with which logs end, per worker."""
    out = []
    for source, rows in run.by_source("log"):
        by_worker: dict[str, list[Row]] = {}
        for r in rows:
            if r["kind"] == "eplb.balance" and isinstance(r["fields"].get("countdown"), int):
                by_worker.setdefault(r["worker"] or "", []).append(r)
        done = [
            r["line"]
            for r in rows
            if r["kind"] in ("eplb.done", "eplb.transfer") and r["fields"].get("mode") != "profile"
        ]
        for lines in by_worker.values():
            tail: list[Row] = []
            for r in reversed(lines):
                value = r["fields"]["countdown"]
                if value >= 0 or (tail and value <= tail[-1]["fields"]["countdown"]):
                    break
                tail.append(r)
            tail.reverse()
            if tail:
                top = max(r["fields"]["countdown"] for r in lines)
                out.append(Countdown(source, tuple(tail), top, any(n > tail[0]["line"] for n in done)))
    return out


def _counts(row: Row) -> bool:
    fields = row["fields"] or {}
    return (
        row["kind"] == "eplb.balance"
        and isinstance(fields.get("balancedness"), int | float)
        and not fields.get("dummy")
        and row["phase"] != "startup"
        and 0 < fields["balancedness"] <= 1
    )
