"""Lines that a worker logs of what stops it (collections, compilations, moves) on the clock of its trace.

A log prints local time, often without a year; a trace counts in epoch time. Offsets of whole quarters
of an hour within a day are time zones; every line of one file must have the same one.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Run

__all__ = ["WorkerLine", "count_in", "lines_in", "worker_lines"]

QUARTER_S = 900.0
ZONES_S = 14 * 3600.0
FIRST_YEARS_S = 4 * 365 * 86_400.0  # a log without a year counts from 1970
NOT_SERVING = ("profile", "async", "warm-up")  # modes of a line that stops no step
PARTS = lazy(r"(EP|DP|TP|RANK|WORKER_)[ _]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One line of a log.

    Args:
        rank: Global rank of the writer; None if the log does not say.
        end_s: Time of the line; what it tells had ended, if it gives a duration.
        seconds: How long it took; None if not printed.
        source, where, text: The line.
    """

    rank: int | None
    end_s: float
    seconds: float | None
    source: str
    where: str
    text: str


def worker_lines(run: Run, *kinds: str) -> list[WorkerLine]:
    """Every line of these kinds with a time, those of start-up, profiling and warm-up left out.

    Args:
        run: What was read.
        kinds: First words of `kind` in the table of log rows.
    """
    ranks = {
        (row["source"], row["worker"]): row["fields"].get("rank")
        for row in run.rows("log")
        if row["kind"] == "engine.rank" and row["worker"] and isinstance(row["fields"], dict)
    }
    found = []
    for row in run.rows("log"):
        if not str(row["kind"]).startswith(kinds) or row["t_s"] is None or row["phase"] == "startup":
            continue
        fields = row["fields"] if isinstance(row["fields"], dict) else {}
        if fields.get("mode") in NOT_SERVING or fields.get("during") in NOT_SERVING:
            continue
        rank = row["rank"]
        if rank is None and row["worker"]:
            rank = ranks.get((row["source"], row["worker"]), _from_name(row["worker"]))
        seconds = fields.get("seconds")
        found.append(
            WorkerLine(
                rank=None if rank is None else int(rank),
                end_s=float(row["t_s"]),
                seconds=float(seconds) if isinstance(seconds, int | float) else None,
                source=row["source"],
                where=row["where"],
                text=row["text"] or "",
            )
        )
    return found


def _from_name(worker: str) -> int | None:
    parts = {kind.upper(): int(n) for kind, n in PARTS.findall(worker)}
    if "EP" in parts:
        return parts["EP"]
    return next(iter(parts.values())) if len(set(parts.values())) == 1 else None


def lines_in(
    lines: Sequence[WorkerLine],
    windows: Sequence[tuple[float, float]],
    slack_s: float,
    most: float = float("inf"),
) -> list[WorkerLine | None]:
    """For each window (seconds) the line that belongs to it, None where there is none.

    A line belongs to a window in which it is written if the duration that it states, if any, fills at
    least half of the window.

    Args:
        lines: Lines of one rank.
        windows: Silences of that rank, start and end in epoch seconds.
        slack_s: How far the line may lie outside.
        most: Longest stated duration in windows; what lasts longer did not stop the rank by itself.
    """
    hits: list[tuple[int, WorkerLine, tuple[float, str]]] = []
    for index, (start, end) in enumerate(windows):
        for line in lines:
            if line.seconds is not None and not 0.5 <= line.seconds / (end - start) <= most:
                continue
            away = _away(line, start, end, slack_s)
            if away is not None and _fits(line, away[1], end - start, slack_s):
                hits.append((index, line, (away[0], line.source)))
    zones = Counter(zone for _, _, zone in hits)
    out: list[WorkerLine | None] = [None] * len(windows)
    for index, line, mine in hits:
        best = max(n for other, n in zones.items() if other[1] == mine[1])
        if zones[mine] == best and out[index] is None:
            out[index] = line
    return out


def count_in(lines: Sequence[WorkerLine], span: tuple[float, float], slack_s: float) -> int:
    """How many lines lie in a span of time (epoch seconds), in some time zone."""
    return sum(_away(line, *span, slack_s) is not None for line in lines)


def _fits(line: WorkerLine, late: float, length: float, slack_s: float) -> bool:
    """Whether what lasted up to a line ends with a window of that length, or fills at least half of it."""
    if line.seconds is None or abs(late) <= slack_s:
        return True
    return min(late, 0.0) - max(late - line.seconds, -length) >= 0.5 * length


def _away(line: WorkerLine, start: float, end: float, slack_s: float) -> tuple[float, float] | None:
    """(time zone, how long after its end) of a line in a window, seconds; None if it lies elsewhere."""
    away = line.end_s - end
    if line.end_s < FIRST_YEARS_S < end:
        away = _without_year(line.end_s) - _without_year(end)
    zone = round(away / QUARTER_S) * QUARTER_S
    inside = abs(zone) <= ZONES_S and start - end - slack_s <= away - zone <= slack_s
    return (zone, away - zone) if inside else None


def _without_year(seconds: float) -> float:
    """Seconds since the start of a year of 366 days, so that dates of all years compare."""
    moment = time.gmtime(seconds)
    days = moment.tm_yday + (moment.tm_mon > 2 and not calendar.isleap(moment.tm_year))
    return days * 86_400 + seconds % 86_400
