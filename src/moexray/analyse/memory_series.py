"""Memory over time: growth at like load, rank correlation, dips of utilisation; plain Python, no judgement.

Glossary: *like load* is the largest set of samples whose load differs little; *windows* are its equal parts
in the order of time, each with its median.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.gpu import Device

__all__ = ["Dips", "Growth", "dips", "growth", "like_load", "load_at", "rank_correlation", "windows"]

WINDOWS = 6  # parts of a series; three of them must grow
LEAST = 4  # samples: three steps
PLATEAU = 0.25  # the last part grows at less than this share of the mean: it has come to rest
RISES = 0.1  # a part rises if it grows by at least this share of the mean growth of a part


@dataclass(frozen=True, slots=True)
class Growth:
    """How a series grows.

    Args:
        medians: Of each window.
        first: Median of the first window.
        last: Median of the last window.
        rises: Windows that lie above the one before.
        settles: The growth has come to rest, or most of it is one jump.
    """

    medians: tuple[float, ...]
    first: float
    last: float
    rises: int
    settles: bool


@dataclass(frozen=True, slots=True)
class Dips:
    """Falls of utilisation between busy samples.

    Args:
        count: Runs of low utilisation with busy samples on both sides.
        full: Of these, runs at full memory.
        windows: Quarters of the series that hold a run at full memory.
        interval_s: Median distance of samples; None if unknown.
        samples: Samples in these runs.
        moved: Runs during or right after which memory in use falls: something was given back.
        busy_below: Share of the busy samples whose memory is not full.
        longest_s: Longest run.
    """

    count: int
    full: int
    windows: int
    interval_s: float | None
    samples: int
    moved: int
    busy_below: float
    longest_s: float | None


def like_load(loads: Sequence[float | None], tolerance: float) -> list[int]:
    """Indices of the largest set of samples whose loads lie within `tolerance` of its smallest.

    Unknown loads are in no set. At least one unit of load counts as alike.
    """
    known = sorted((v, i) for i, v in enumerate(loads) if v is not None and not math.isnan(v))
    best: tuple[int, int] = (0, 0)
    end = 0
    for start, (low, _) in enumerate(known):
        bound = max(low * (1 + tolerance), low + (1.0 if low >= 1 else 0.0))
        while end < len(known) and known[end][0] <= bound:
            end += 1
        if end - start > best[1] - best[0]:
            best = (start, end)
    return sorted(i for _, i in known[best[0] : best[1]])


def windows(values: Sequence[float], count: int = WINDOWS) -> list[float]:
    """Medians of `count` equal parts; fewer where the series is short; [] below four samples."""
    count = min(count, len(values))
    if count < LEAST:
        return []
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [statistics.median(values[a:b]) for a, b in pairwise(edges)]


def growth(values: Sequence[float]) -> Growth | None:
    """How a series in the order of time grows; None if it is too short."""
    medians = windows(values)
    if not medians:
        return None
    steps = [b - a for a, b in pairwise(medians)]
    total = medians[-1] - medians[0]
    mean = total / len(steps)
    rises = sum(s > RISES * mean for s in steps) if mean > 0 else 0
    one_jump = mean > 0 and max(steps) > 0.8 * total
    settles = mean > 0 and (steps[-1] < PLATEAU * mean or one_jump)
    return Growth(tuple(medians), medians[0], medians[-1], rises, settles)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's coefficient, ties by mean rank; None below three points or where one does not vary."""
    if len(a) < 3 or len(a) != len(b):
        return None
    ra, rb = _ranks(a), _ranks(b)
    try:
        return statistics.correlation(ra, rb)
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in order[i : j + 1]:
            ranks[k] = (i + j) / 2
        i = j + 1
    return ranks


def load_at(times: Sequence[float], load: Sequence[tuple[float, float]]) -> list[float | None]:
    """The load at each time: of the nearest sample, where that is not further than the samples lie apart.

    Clocks that share no time and last equally long (5 %) are taken to start together (one counts from the
    start of the run, the other is a date).

    Args:
        times: When memory was sampled, ascending.
        load: (time, load), ascending.
    """
    if not times or len(load) < 2 or any(math.isnan(t) for t in times):
        return [None] * len(times)
    first, last = load[0][0], load[-1][0]
    shift = 0.0
    if last < times[0] or first > times[-1]:
        span, other = times[-1] - times[0], last - first
        if not span or abs(span - other) > 0.05 * max(span, other):
            return [None] * len(times)
        shift = times[0] - first
    at = [t + shift for t, _ in load]
    reach = max(b - a for a, b in pairwise(at))
    out: list[float | None] = []
    for t in times:
        i = bisect_left(at, t)
        near = min((k for k in (i - 1, i) if 0 <= k < len(at)), key=lambda k: abs(at[k] - t))
        out.append(load[near][1] if abs(at[near] - t) <= reach else None)
    return out


def dips(device: Device, low: float, busy: float, full: float) -> Dips | None:
    """Runs of samples at low utilisation between busy ones, and the memory in use during them.

    Args:
        device: Its samples.
        low: Utilisation at or below which the GPU stands still, ratio.
        busy: Utilisation from which it works, ratio.
        full: Share of the total from which memory is full, ratio.

    Returns:
        None where utilisation, memory or times are unknown.
    """
    total = device.last("total_bytes")
    rows = [
        (t, u, m)
        for t, u, m in zip(
            device.numbers["t_s"], device.numbers["util_ratio"], device.numbers["used_bytes"], strict=True
        )
        if not (math.isnan(u) or math.isnan(m) or math.isnan(t))
    ]
    if not total or len(rows) < 2 * LEAST:
        return None
    gaps = [b[0] - a[0] for a, b in pairwise(rows)]
    runs = _runs(rows, low, busy)
    span = rows[-1][0] - rows[0][0] or 1.0
    at_full = [(a, b) for a, b in runs if all(m >= full * total for _, _, m in rows[a:b])]
    quarters = {min(3, int(4 * (rows[a][0] - rows[0][0]) / span)) for a, _ in at_full}
    working = [m for _, u, m in rows if u >= busy]
    moved = sum(min(m for _, _, m in rows[a : b + 2]) < rows[a - 1][2] - 0.001 * total for a, b in runs)
    return Dips(
        len(runs),
        len(at_full),
        len(quarters),
        statistics.median(gaps),
        sum(b - a for a, b in runs),
        moved,
        sum(m < full * total for m in working) / len(working) if working else 0.0,
        max((rows[b][0] - rows[a][0] for a, b in runs), default=None),
    )


def _runs(rows: Sequence[tuple[float, float, float]], low: float, busy: float) -> list[tuple[int, int]]:
    """Half-open index ranges of low utilisation that busy samples enclose."""
    out = []
    start: int | None = None
    working = False
    for i, (_, util, _) in enumerate(rows):
        if util <= low:
            if start is None and working:
                start = i
            continue
        if util >= busy:
            if start is not None:
                out.append((start, i))
            working = True
            start = None
        elif start is not None and util > low:
            out.append((start, i))
            start = None
    return out
