"""What the allocator held before the first event of a history, walked backwards from its end.

A block that lived at the start and died later left its true size nowhere; its slack (see
algorithms/blocks.py) is inferred from who moved in behind it. What stays unknown is told.

Source: the method of the allocator replay in docs/decisions/020.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from moexray.algorithms.blocks import SMALL_SEGMENT, SMALL_SIZE, ContradictionError, is_small, round_size
from moexray.algorithms.history import Action, History, PrivatePlaces, SegmentState
from moexray.algorithms.mapped import start_of_expandable

__all__ = ["Ambiguous", "start_state"]


class Ambiguous(NamedTuple):
    """A block whose size at the start nothing tells: `least` to `most` bytes."""

    address: int
    least: int
    most: int


def start_state(history: History) -> tuple[list[SegmentState], tuple[Ambiguous, ...]]:
    """The segments before the first event, and the blocks whose size is not certain.

    Raises:
        ContradictionError: the snapshot contradicts itself (segments or blocks overlap).
    """
    _check(history.segments)
    live: dict[int, int] = {}  # address -> requested size
    sizes: dict[int, int] = {}  # true block size where the end state still holds it
    segments = {s.address: s for s in history.segments if not s.expandable}
    for s in history.segments:
        for address, size, requested, used in s.blocks:
            if used:
                live[address], sizes[address] = requested, size
    for e in reversed(history.events):
        if e.action == Action.ALLOC:
            live.pop(e.address, None)
            sizes.pop(e.address, None)
        elif e.action == Action.FREE_COMPLETED:
            live[e.address] = e.size
            sizes.pop(e.address, None)
        elif e.action == Action.SEGMENT_ALLOC:
            segments.pop(e.address, None)
        elif e.action == Action.SEGMENT_FREE:
            segments[e.address] = SegmentState(e.address, e.size, e.stream)
    gone = [a for a, s in segments.items() if not s.blocks]
    segments |= _pools_of_gone(history, [segments[a] for a in gone], live)
    plain = sorted(segments.values(), key=lambda s: s.address)
    known, ambiguous = _true_sizes(history, plain, live, sizes)
    addresses, whole = sorted(live), [(s, [(s.address, s.address + s.size)]) for s in plain]
    filled = []
    for s, runs in [*whole, *start_of_expandable(history)]:
        blocks = [b for run in runs for b in _fill(run, addresses, live, known)]
        filled.append(replace(s, blocks=tuple(blocks)))
    return _without_overlap(filled), ambiguous


def _without_overlap(segments: list[SegmentState]) -> list[SegmentState]:
    """In order; an address space of unknown size ends before the next segment."""
    out = sorted(segments, key=lambda s: s.address)
    for i, (s, following) in enumerate(pairwise(out)):
        if s.expandable and s.address + s.size > following.address:
            size = (following.address - s.address) // s.page * s.page
            out[i] = replace(s, size=max(size, s.blocks[-1][0] + s.blocks[-1][1] - s.address))
    return out


def _check(segments: tuple[SegmentState, ...]) -> None:
    end = 0
    for s in sorted(segments, key=lambda s: s.address):
        if s.address < end or s.size <= 0:
            raise ContradictionError(f"the segment at {s.address:#x} overlaps another")
        end = s.address
        for address, size, _, _ in s.blocks:
            if address < end or size <= 0:
                raise ContradictionError(f"the block at {address:#x} overlaps another")
            end = address + size
        if end > s.address + s.size:
            raise ContradictionError(f"the segment at {s.address:#x} is smaller than its blocks")
        end = s.address + s.size


def _pools_of_gone(
    history: History, gone: list[SegmentState], live: dict[int, int]
) -> dict[int, SegmentState]:
    """Pool and kind of segments that do not live to the end: from their first tenant."""
    starts = sorted(s.address for s in gone)
    size_of = {s.address: s.size for s in gone}
    tenant: dict[int, int] = {}

    def note(address: int, size: int) -> None:
        at = bisect_right(starts, address) - 1
        if at >= 0 and address - starts[at] < size_of[starts[at]]:
            tenant.setdefault(starts[at], size)

    for address, size in live.items():
        note(address, size)
    pools, places, over = {}, PrivatePlaces(history), set()
    for e in history.events:
        if e.action == Action.ALLOC:
            at = bisect_right(starts, e.address) - 1
            if at >= 0 and starts[at] not in over:
                note(e.address, e.size)
        elif e.action == Action.SEGMENT_FREE and e.address not in over:
            over.add(e.address)
            pools[e.address] = places.of(e)
    out = {}
    for s in gone:
        small = s.size == SMALL_SEGMENT and is_small(round_size(tenant.get(s.address, 0)))
        out[s.address] = replace(s, small=s.small or small, pool=pools.get(s.address, s.pool))
    return out


def _true_sizes(
    history: History, segments: list[SegmentState], live: dict[int, int], sizes: dict[int, int]
) -> tuple[dict[int, int], tuple[Ambiguous, ...]]:
    """Block size of each live address, slack included."""
    settings, addresses = history.settings, sorted(live)
    known = {a: sizes.get(a) or round_size(n, settings) for a, n in live.items()}
    unknown: dict[int, int] = {}  # end of the rounded request -> address
    for s in segments:
        inside = _within(addresses, s.address, s.address + s.size)
        for i, a in enumerate(inside):
            gap = (inside[i + 1] if i + 1 < len(inside) else s.address + s.size) - a - known[a]
            if a in sizes or s.small or gap <= 0:
                continue
            whole = settings.max_split is not None and known[a] >= settings.max_split
            if whole or gap <= SMALL_SIZE:  # so little is not split off; of an oversize block nothing
                known[a] += gap
            else:
                unknown[a + known[a]] = a
    return known, _infer_slack(history, unknown, known)


def _within(addresses: list[int], start: int, end: int) -> list[int]:
    return addresses[bisect_left(addresses, start) : bisect_left(addresses, end)]


def _infer_slack(history: History, unknown: dict[int, int], known: dict[int, int]) -> tuple[Ambiguous, ...]:
    """Whoever moves in within 1 MiB behind a block tells where that block ended."""
    ends, at_end = sorted(unknown), {a: end for end, a in unknown.items()}
    lost = []
    for e in history.events:
        if not ends:
            break
        if e.action == Action.ALLOC:
            at = bisect_right(ends, e.address) - 1
            if at >= 0 and e.address - ends[at] <= SMALL_SIZE:
                known[unknown[ends[at]]] += e.address - ends[at]
                del ends[at]
        elif e.action == Action.FREE_COMPLETED:
            at = bisect_left(ends, at_end.get(e.address, -1))
            if at < len(ends) and unknown[ends[at]] == e.address:
                lost.append(ends.pop(at))
    return tuple(Ambiguous(unknown[end], known[unknown[end]], known[unknown[end]] + SMALL_SIZE)
                 for end in sorted(lost + ends))  # fmt: skip


def _fill(
    run: tuple[int, int], addresses: list[int], live: dict[int, int], known: dict[int, int]
) -> list[tuple[int, int, int, bool]]:
    """Live blocks, and the gaps between them, from the start to the end of memory."""
    at, end = run
    blocks, inside = [], _within(addresses, at, end)
    for a, following in pairwise([*inside, end]):
        if a > at:
            blocks.append((at, a - at, 0, False))
        size = min(known[a], following - a)
        blocks.append((a, size, live[a], True))
        at = a + size
    if at < end:
        blocks.append((at, end - at, 0, False))
    return blocks
