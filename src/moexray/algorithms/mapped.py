"""Which pages of expandable segments were mapped before the first event of a history.

A snapshot shows mapped runs, not the address spaces they lie in, and entries of a history do not say
whether they concern the small or the large pool: both are found from what happened there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from moexray.algorithms.blocks import SMALL_SEGMENT, Pool, is_small, round_size
from moexray.algorithms.history import Action, Event, History, PrivatePlaces, SegmentState

__all__ = ["Witnesses", "start_of_expandable"]

Run = tuple[int, int]
UNKNOWN_SPACE = 1 << 40  # more than 9/8 of any device


class _Owner(NamedTuple):
    pool: Pool
    small: bool
    stream: int


class Witnesses:
    """Tells the small from the large pool: by size, else by who lived nearest to an address.

    Mapping events of 2 MiB are the small pool's: it maps one page for a request, and the page of the
    large pool is above 10 MiB. What is no multiple of that page is the small pool's, too.
    """

    def __init__(self, history: History) -> None:
        known: dict[int, bool] = {}
        self._page = history.settings.large_segment
        for e in history.events:
            if e.action in (Action.ALLOC, Action.FREE_COMPLETED):
                known[e.address] = is_small(round_size(e.size, history.settings))
            elif e.action == Action.SEGMENT_MAP:
                known[e.address] = e.size == SMALL_SEGMENT
        for s in history.segments:
            if s.expandable:
                known[s.address] = known[s.address + s.size - 1] = s.small
        self._places, self._known = sorted(known), known

    def small(self, address: int, size: int) -> bool:
        """Whether the range is of the small pool."""
        at = bisect_left(self._places, address)
        near = self._places[max(at - 1, 0) : at + 1]
        if size % self._page or not near:
            return size % self._page != 0
        nearest = min(near, key=lambda p: max(address - p, p - (address + size - 1), 0))
        return self._known[nearest]


def start_of_expandable(history: History) -> list[tuple[SegmentState, list[Run]]]:
    """The expandable segments before the first event, each with its mapped runs."""
    witnesses, places = Witnesses(history), PrivatePlaces(history)

    def owner(e: Event) -> _Owner:
        is_map = e.action == Action.SEGMENT_MAP
        small = e.size == SMALL_SEGMENT if is_map else witnesses.small(e.address, e.size)
        return _Owner(places.of(e), small, e.stream)

    moves = [(e, owner(e)) for e in history.events if e.action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)]
    runs: dict[_Owner, list[Run]] = {}
    for s in history.segments:
        if s.expandable:
            runs.setdefault(_Owner(s.pool, s.small, s.stream), []).append((s.address, s.address + s.size))
    for e, who in reversed(moves):
        mapped = runs.setdefault(who, [])
        if e.action == Action.SEGMENT_MAP:
            runs[who] = _without(mapped, e.address, e.address + e.size)
        else:
            runs[who] = _with(mapped, e.address, e.address + e.size)
    out = []
    for who, mapped in runs.items():
        if mapped:
            seen = _first_life([(e, o) for e, o in moves if o == who], mapped)
            out += _segments(history, who, mapped, seen)
    return out


def _without(runs: list[Run], start: int, end: int) -> list[Run]:
    out = []
    for a, b in runs:
        out += [(x, y) for x, y in ((a, min(b, start)), (max(a, end), b)) if x < y]
    return out


def _with(runs: list[Run], start: int, end: int) -> list[Run]:
    joined: list[Run] = []
    for a, b in sorted([*_without(runs, start, end), (start, end)]):
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined


def _first_life(moves: list[tuple[Event, _Owner]], mapped: list[Run]) -> list[Run]:
    """Every range that was mapped until, for the first time, nothing was."""
    seen, total = list(mapped), sum(b - a for a, b in mapped)
    for e, _ in moves:
        if total <= 0:
            break
        if e.action == Action.SEGMENT_MAP:
            seen.append((e.address, e.address + e.size))
            total += e.size
        else:
            total -= e.size
    return sorted(seen)


def _segments(
    history: History, who: _Owner, mapped: list[Run], seen: list[Run]
) -> list[tuple[SegmentState, list[Run]]]:
    """Splits what was seen into address spaces: one begins at the lowest address ever mapped in it."""
    page = SMALL_SEGMENT if who.small else history.settings.large_segment
    space = -(-(history.va_bytes or UNKNOWN_SPACE) // page) * page
    bases: list[int] = []
    for a, _ in seen:
        if not bases or a >= bases[-1] + space:
            bases.append(a)
    out = []
    for base in bases:
        inside = [r for r in sorted(mapped) if base <= r[0] < base + space]
        if inside:
            state = SegmentState(base, space, who.stream, who.small, who.pool, (), expandable=True, page=page)
            out.append((state, inside))
    return out
