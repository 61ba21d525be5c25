"""Brings the clock of a log onto the clock of a series.

Same kinds of clock are compared as they are; a date without a year takes the year of the series; a
log in local time may be whole quarters of an hour off. Where one side counts from a start and the
other has dates, only the pattern of the happenings themselves can tell, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Alignment", "align", "year_offset"]

DAY_S = 86_400.0
MARCH_S = 59 * DAY_S  # of a year of 365 days
QUARTER_S = 900.0  # zones differ by multiples of a quarter of an hour
ZONES_S = 14 * 3600.0
PATTERN_LEAST = 4  # happenings that must coincide before a pattern counts
PATTERN_SHARE = 0.8  # of the stalls
TOLERANCE_S = 0.25
PAIRS = 400  # happenings of either side that are compared with each other


@dataclass(frozen=True, slots=True)
class Alignment:
    """How to read the log's times on the series' clock.

    Args:
        offset_s: Add to a time of the log; None if nothing relates the two clocks.
        how: What was assumed, for the claim; "" where nothing was.
        certain: No assumption beyond the clocks' own meaning.
    """

    offset_s: float | None
    how: str = ""
    certain: bool = True


def align(
    log: tuple[str, Sequence[float]], series: tuple[str, tuple[float, float]], stalls: Sequence[float]
) -> Alignment:
    """Relates a log to a series.

    Args:
        log: (clock, times of the happenings): "epoch", "year", "relative" or "none".
        series: (clock, (first, last)): "epoch", "day", "relative" or "none".
        stalls: Starts of the stalls on the clock of the series.
    """
    (log_clock, events), (clock, span) = log, series
    if not events or log_clock == "none" or clock == "none" or not np.isfinite(span).all():
        return Alignment(None)
    if log_clock == clock == "relative":
        return Alignment(0.0)
    dated = log_clock in ("epoch", "year")
    if dated and clock == "epoch":
        base = year_offset(span[0], min(events)) if log_clock == "year" else 0.0
        return _zone(base, events, span, stalls)
    if dated and clock == "day":
        return _zone(-float(np.floor(min(events) / DAY_S)) * DAY_S, events, span, stalls)
    return _by_pattern(events, stalls)


def year_offset(t_s: float, event_s: float) -> float:
    """What to add to a stamp without a year (counted from 1970) to place it in the year of an epoch time.

    Args:
        t_s: Epoch seconds in the year that is meant.
        event_s: The stamp; behind February a leap year adds a day that 1970 does not have.
    """
    year = np.datetime64(int(t_s), "s").astype("datetime64[Y]")
    start = float(year.astype("datetime64[s]").astype(int))
    leap = (year + 1).astype("datetime64[D]") - year.astype("datetime64[D]") == np.timedelta64(366, "D")
    return start + (DAY_S if leap and event_s >= MARCH_S else 0.0)


def _zone(
    base: float, events: Sequence[float], span: tuple[float, float], stalls: Sequence[float]
) -> Alignment:
    """Offset 0 where the two overlap; else the zone in which most happenings meet a stall."""
    times = np.asarray(events, float) + base
    if ((times >= span[0] - 60) & (times <= span[1] + 60)).any():
        return Alignment(base)
    best, hits = None, 0
    for shift in np.arange(-ZONES_S, ZONES_S + 1, QUARTER_S):
        moved = times + shift
        inside = int(((moved >= span[0] - 60) & (moved <= span[1] + 60)).sum())
        score = inside + 10 * _meetings(moved, stalls)
        if inside and score > hits:
            best, hits = float(shift), score
    if best is None:
        return Alignment(None)
    how = f"the log's clock is taken as {-best / 3600:+.4g} h from that of the series (time zones)"
    return Alignment(base + best, how, certain=False)


def _meetings(times: np.ndarray, stalls: Sequence[float]) -> int:
    if not len(stalls):
        return 0
    starts = np.sort(np.asarray(stalls, float))
    at = np.searchsorted(starts, times)
    near = np.minimum(
        np.abs(times - starts[np.clip(at, 0, len(starts) - 1)]),
        np.abs(times - starts[np.clip(at - 1, 0, len(starts) - 1)]),
    )
    return int((near <= 2.0).sum())


def _by_pattern(events: Sequence[float], stalls: Sequence[float]) -> Alignment:
    """The offset under which nearly all stalls meet a happening, if chance cannot do that."""
    a = np.sort(np.asarray(events, float))[:PAIRS]
    b = np.sort(np.asarray(stalls, float))[:PAIRS]
    if min(len(a), len(b)) < PATTERN_LEAST:
        return Alignment(None)
    width = 2 * TOLERANCE_S + (1.0 if (np.abs(a - np.round(a)) < 1e-4).all() else 0.0)
    if (len(b) - 1) * width > 0.1 * (b[-1] - b[0]) or (len(a) - 1) * width > 0.1 * (a[-1] - a[0]):
        return Alignment(None)
    differences = np.sort((b[None, :] - a[:, None]).ravel())
    counts = np.searchsorted(differences, differences + width, side="right") - np.arange(len(differences))
    top = int(counts.argmax())
    score = int(counts[top])
    if score < max(PATTERN_LEAST, PATTERN_SHARE * len(b)) or score < 0.5 * len(a):
        return Alignment(None)
    offset = float(np.median(differences[top : top + score]))
    how = f"the two clocks start at different moments; they were aligned by {score} happenings that coincide"
    return Alignment(offset, how, certain=False)
