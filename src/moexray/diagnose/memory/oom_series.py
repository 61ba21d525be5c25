"""Buffers that grow with the tokens, read from log lines: bytes per token and whether it is a line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.limits.memory import MemoryLimits
    from moexray.core.run import Row, Run

__all__ = ["Series", "fit", "growing", "series_of"]


@dataclass(frozen=True, slots=True)
class Series:
    """One buffer of one worker over time.

    Args:
        what: The log line without its numbers.
        who: Source, rank and worker.
        points: (tokens, bytes) in the order of the log.
        rows: The log rows.
        slope: Bytes per token.
        offset: Bytes at no tokens.
        r2: Coefficient of determination.
    """

    what: str
    who: tuple[object, ...]
    points: tuple[tuple[int, int], ...]
    rows: tuple[Row, ...]
    slope: float
    offset: float
    r2: float


def fit(points: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Least squares: (slope, offset, R2); R2 is 0 where nothing varies."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if not xx or not yy:
        return 0.0, mean_y, 0.0
    slope = xy / xx
    return slope, mean_y - slope * mean_x, xy * xy / (xx * yy)


def series_of(run: Run, limits: MemoryLimits) -> list[Series]:
    """Buffers whose size rises in a line with the tokens, alike on all ranks that log them."""
    groups: dict[tuple[str, tuple[object, ...]], list[Row]] = {}
    for row in run.rows("log"):
        if row["kind"] == "mem.activation":
            who: tuple[object, ...] = (row["source"], row["rank"], row["worker"])
            groups.setdefault((row["fields"]["what"], who), []).append(row)
    out: list[Series] = []
    for (what, who), rows in groups.items():
        points = tuple((r["fields"]["tokens"], r["fields"]["bytes"]) for r in rows)
        rising = sum(b[0] > a[0] for a, b in pairwise(points))
        few = len({t for t, _ in points}) < limits.series_points
        if few or rising < limits.rising_ratio * (len(points) - 1):
            continue
        slope, offset, r2 = fit(points)
        if slope > 0 and r2 >= limits.linear_r2:
            out.append(Series(what, who, points, tuple(rows), slope, offset, r2))
    return [s for s in out if _alike(s, out, limits)]


def _alike(s: Series, all_: Sequence[Series], limits: MemoryLimits) -> bool:
    """The last common size is equal on all ranks within the limit: it is the context, not the routing."""
    peers = [p for p in all_ if p.what == s.what]
    length = min(len(p.points) for p in peers)
    sizes = [p.points[length - 1][1] for p in peers]
    return max(sizes) - min(sizes) <= limits.ranks_alike_ratio * max(sizes)


def growing(row: Row, found: Sequence[Series], limits: MemoryLimits) -> Series | None:
    """The series whose next size the request of a record is: its last or more, within the same order."""
    request = row["request_bytes"]
    if request is None:
        return None
    for s in found:
        last = max(b for _, b in s.points)
        same = (row["source"] == s.who[0] and row["rank"] in (None, s.who[1])) or row["source"] != s.who[0]
        if same and limits.next_least_ratio * last <= request <= limits.next_most_ratio * last:
            return s
    return None
