"""Collector lines of logs against the clock of a trace.

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

__all__ = ["CollectorLine", "collector_lines", "lines_in"]

QUARTER_S = 900.0
ZONES_S = 14 * 3600.0
FIRST_YEARS_S = 4 * 365 * 86_400.0  # a log without a year counts from 1970
PARTS = lazy(r"(EP|DP|TP|RANK|WORKER_)[ _]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CollectorLine:
    """One collection that a log reports.

    Args:
        rank: Global rank of the writer; None if the log does not say.
        end_s: Time of the line, when the collection had ended.
        seconds: How long it took; None if not printed.
        source, where, text: The line.
    """

    rank: int | None
    end_s: float
    seconds: float | None
    source: str
    where: str
    text: str


def collector_lines(run: Run) -> list[CollectorLine]:
    """Every collector line with a time."""
    ranks = {
        (row["source"], row["worker"]): row["fields"].get("rank")
        for row in run.rows("log")
        if row["kind"] == "engine.rank" and row["worker"] and isinstance(row["fields"], dict)
    }
    found = []
    for row in run.rows("log"):
        if not str(row["kind"]).startswith(("host.gc", "gc")) or row["t_s"] is None:
            continue
        fields = row["fields"] if isinstance(row["fields"], dict) else {}
        rank = row["rank"]
        if rank is None and row["worker"]:
            rank = ranks.get((row["source"], row["worker"]), _from_name(row["worker"]))
        seconds = fields.get("seconds")
        found.append(
            CollectorLine(
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
    lines: Sequence[CollectorLine], windows: Sequence[tuple[float, float]], slack_s: float
) -> list[CollectorLine | None]:
    """For each window (seconds) the line of a collection that fills it, None where there is none.

    Args:
        lines: Lines of one rank.
        windows: Silences of that rank, start and end in epoch seconds.
        slack_s: How far the line may lie outside.
    """
    hits: list[tuple[int, CollectorLine, tuple[float, str]]] = []
    for index, (start, end) in enumerate(windows):
        for line in lines:
            if line.seconds is not None and line.seconds < 0.5 * (end - start):
                continue
            away = line.end_s - end
            if line.end_s < FIRST_YEARS_S < end:
                away = _without_year(line.end_s) - _without_year(end)
            zone = round(away / QUARTER_S) * QUARTER_S
            if abs(zone) <= ZONES_S and start - end - slack_s <= away - zone <= slack_s:
                hits.append((index, line, (zone, line.source)))
    zones = Counter(zone for _, _, zone in hits)
    out: list[CollectorLine | None] = [None] * len(windows)
    for index, line, mine in hits:
        best = max(n for other, n in zones.items() if other[1] == mine[1])
        if zones[mine] == best and out[index] is None:
            out[index] = line
    return out


def _without_year(seconds: float) -> float:
    """Seconds since the start of a year of 366 days, so that dates of all years compare."""
    moment = time.gmtime(seconds)
    days = moment.tm_yday + (moment.tm_mon > 2 and not calendar.isleap(moment.tm_year))
    return days * 86_400 + seconds % 86_400
