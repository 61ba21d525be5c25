"""Which stalls of a latency series meet which happenings of a log, on one clock.

Glossary: a stall *meets* an episode if it overlaps the episode's *window*, a stretch of time that
the caller chooses per kind; *by chance* is the share of the series' time that lies in a window.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.analyse.alignment import Alignment, align
from moexray.analyse.engine_log import clock_of
from moexray.analyse.latency import Series, Stall, load_series, stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moexray.analyse.engine_log import Episode
    from moexray.core.run import Run

__all__ = ["Meeting", "best_meeting", "on_clock_of"]

ASSUMED = 0.65  # confidence at most where the clocks had to be related by an assumption


@dataclass(frozen=True, slots=True)
class Meeting:
    """Stalls of one series and the episodes of one kind, on one clock.

    Args:
        series, found: The series and its stalls.
        episodes: On the clock of the series.
        hits: Stall index -> the episode that it meets.
        met: Indices of the episodes that meet a stall.
        chance: Share of the time in which a stall would meet an episode by chance.
        how: What was assumed of the clocks.
        related: False where nothing relates the two clocks.
    """

    series: Series
    found: list[Stall]
    episodes: list[Episode]
    hits: dict[int, int]
    met: frozenset[int]
    chance: float
    how: str = ""
    related: bool = True

    @property
    def share(self) -> float:
        """Share of the stalls that meet an episode."""
        return len(self.hits) / len(self.found) if self.found else 0.0

    @property
    def hit(self) -> list[Stall]:
        """The stalls that meet an episode."""
        return [self.found[i] for i in self.hits]

    @property
    def stalled_s(self) -> float:
        """Their sum."""
        return sum(x.value_s for x in self.hit)

    @property
    def longest_s(self) -> float:
        """The longest of them; of all stalls if none meets an episode."""
        return max(x.value_s for x in self.hit or self.found)

    def filled(self, episode: int) -> float:
        """Share of an episode that one stall fills; 1 where stamps do not tell."""
        e = self.episodes[episode]
        start, end = e.start_s, e.end_s
        whole = all(r["t_s"] == round(r["t_s"]) for r in e.rows if r["t_s"] is not None)
        if whole or not end > start:
            return 1.0
        return max(min(end, x.end_s) - max(start, x.start_s) for x in self.found) / (end - start)

    def confidence(self, best: float) -> float:
        """The confidence, lowered where the clocks were related by an assumption."""
        return min(best, ASSUMED) if self.how else best


def best_meeting(
    run: Run,
    spike: float,
    episodes: list[Episode],
    window: Callable[[Episode, float], tuple[float, float]],
    *,
    begins: bool = False,
) -> Meeting | None:
    """The series in which most stalls meet an episode.

    Args:
        run: What was read.
        spike: A value above this multiple of the median is a spike.
        episodes: Happenings of one kind.
        window: (episode, longest stall in s) -> stretch of time on the log's clock.
        begins: A stall must begin in the window, not only overlap it.

    Returns:
        None where there are no stalls or no episodes.
    """
    meetings = [
        _meet(s, found, episodes, window, begins=begins)
        for s in load_series(run, spike)
        if episodes and (found := stalls(s))
    ]
    return max(meetings, key=lambda m: (m.related, len(m.hits), m.share), default=None)


def on_clock_of(s: Series, found: list[Stall], episodes: Sequence[Episode]) -> list[tuple[Episode, float]]:
    """Episodes with the offset of their file's clock to that of the series."""
    out = []
    for source in dict.fromkeys(e.source for e in episodes):
        own = [e for e in episodes if e.source == source]
        offset = _offset(s, found, own).offset_s
        if offset is not None:
            out += [(e, offset) for e in own]
    return out


def _offset(s: Series, found: list[Stall], own: Sequence[Episode]) -> Alignment:
    times = [e.start_s for e in own]
    clock = clock_of([r for e in own for r in e.rows] or [e.row for e in own])
    return align((clock, times), (s.clock, s.span), [x.start_s for x in found])


def _meet(
    s: Series,
    found: list[Stall],
    episodes: list[Episode],
    window: Callable[[Episode, float], tuple[float, float]],
    *,
    begins: bool,
) -> Meeting:
    """Finds for each stall the episode whose window it overlaps (or begins in)."""
    how, moved = "", []
    for source in dict.fromkeys(e.source for e in episodes):
        own = [e for e in episodes if e.source == source]
        a = _offset(s, found, own)
        if a.offset_s is None:
            continue
        how = how or a.how
        whole = all(e.end_s == round(e.end_s) for e in own)  # stamps of whole seconds
        moved += [(e, a.offset_s, 1.0 if whole else 0.0) for e in own]
    if not moved:
        return Meeting(s, found, episodes, {}, frozenset(), 0.0, related=False)
    longest = max(x.value_s for x in found)
    slack = max(s.median_s, 0.02)
    spans = []
    for i, (e, offset, coarse) in enumerate(moved):
        low, high = window(e, longest)
        spans.append((low + offset - slack, high + offset + coarse + slack, i))
    spans.sort()
    lows = [low for low, _, _ in spans]
    widest = max(high - low for low, high, _ in spans)
    hits: dict[int, int] = {}
    met: set[int] = set()
    for k, stall in enumerate(found):
        last = stall.start_s if begins else stall.end_s
        near = spans[bisect_left(lows, stall.start_s - widest) : bisect_right(lows, last)]
        inside = [i for _, high, i in near if stall.start_s <= high]
        if inside:
            hits[k] = min(inside, key=lambda i: abs(moved[i][0].start_s + moved[i][1] - stall.start_s))
            met.update(inside)
    kept = [replace(e, start_s=e.start_s + offset, end_s=e.end_s + offset) for e, offset, _ in moved]
    return Meeting(s, found, kept, hits, frozenset(met), _covered(spans, s.span), how)


def _covered(spans: list[tuple[float, float, int]], span: tuple[float, float]) -> float:
    """Share of the series' time that lies in a window."""
    total, end = 0.0, span[0]
    for low, high, _ in spans:
        a, b = max(low, end), min(high, span[1])
        if b > a:
            total += b - a
            end = b
    length = span[1] - span[0]
    return total / length if length > 0 else 0.0
