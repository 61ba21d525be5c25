"""The memory map: every segment as a row of runs, neighbours of one kind together, thinned to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Shot
from moexray.analyse.snapshot_sites import owners

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KINDS", "MemoryMap", "memory_map"]

KINDS = ("live", "pending", "stuck", "cached")
"""Codes of `kind`: the position. Pending waits for a stream, cached can go back to the device."""

MOST_SEGMENTS = 1_000  # the largest ones
MOST_RUNS = 3_000  # of one map
PIXELS = 1 << 16  # about what a screen has room for
MOST_SITES = 6  # call sites that get a colour


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """One device as it is drawn.

    Args:
        segments: Rows of the segments drawn: by pool, stream, large before small, address.
        sites: Call sites of most live bytes, most first.
        site_bytes: Live bytes of each of them.
        run_segment: Position in `segments` of each run.
        run_bytes: Its bytes, in address order within the segment.
        run_kind: Its kind.
        run_site: Position in `sites`; -1 for free ones, others, and several together.
        blocks: Blocks in the segments drawn.
        merged_below: Within as many bytes, smaller runs are sorted by kind and joined; 0 for none.
        held_by: For each segment drawn the call site of its largest live block, "" for none.
    """

    segments: NDArray[np.int64]
    sites: tuple[str, ...]
    site_bytes: tuple[int, ...]
    run_segment: NDArray[np.int64]
    run_bytes: NDArray[np.int64]
    run_kind: NDArray[np.int64]
    run_site: NDArray[np.int64]
    blocks: int
    merged_below: int
    held_by: tuple[str, ...]


def memory_map(shot: Shot) -> MemoryMap:
    """The map of all sound segments, or of the largest ones."""
    s = shot.segments
    drawn = np.flatnonzero(shot.sound)
    drawn = drawn[np.argsort(-s["total_bytes"][drawn], kind="stable")][:MOST_SEGMENTS]
    drawn = drawn[np.lexsort([s[k][drawn] for k in ("address", "is_small", "stream", "pool")])]
    place = np.full(len(s["address"]), -1, dtype=np.int64)
    place[drawn] = np.arange(len(drawn))
    rows = np.flatnonzero(place[shot.blocks["segment"]] >= 0)
    rows = rows[np.argsort(place[shot.blocks["segment"][rows]], kind="stable")]
    segment, size = place[shot.blocks["segment"][rows]], shot.blocks["size_bytes"][rows]
    kind, stack = _kinds(shot, rows), owners(shot)[rows]
    sites, site_bytes, site = _sites(shot, stack, np.where(kind < 2, size, 0))
    runs = _joined((segment, size, kind, site), _changes(segment, kind, site))
    runs, cell = _thinned(runs)
    return MemoryMap(
        drawn, sites, site_bytes, *runs, blocks=len(rows), merged_below=cell,
        held_by=_held_by(shot, segment, np.where(kind < 2, size, -1), stack, len(drawn)),
    )  # fmt: skip


Runs = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _kinds(shot: Shot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each block is; a free one in an expandable segment is cached if more than half can be unmapped."""
    state, owner = shot.blocks["state"][rows], shot.blocks["segment"][rows]
    s = shot.segments
    pinned = (s["live_blocks"] > 0) & (~s["is_expandable"] | (s["stuck"] * 2 > s["free"]))
    free = np.where(pinned[owner], KINDS.index("stuck"), KINDS.index("cached"))
    return np.where(state == INACTIVE, free, np.where(state == 2, 1, 0))


def _sites(
    shot: Shot, stack: NDArray[np.int64], live: NDArray[np.int64]
) -> tuple[tuple[str, ...], tuple[int, ...], NDArray[np.int64]]:
    """The call sites of most live bytes, their bytes, and which of them each block is of."""
    names = {name: code for code, name in enumerate(dict.fromkeys(shot.sites))}
    code = np.array([names[name] for name in shot.sites], dtype=np.int64)[stack]
    held = np.bincount(code, weights=live, minlength=len(names)).astype(np.int64)
    top = [i for i in np.argsort(-held, kind="stable")[:MOST_SITES].tolist() if held[i]]
    rank = np.full(len(names), -1, dtype=np.int64)
    rank[top] = np.arange(len(top))
    known = list(names)
    return tuple(known[i] for i in top), tuple(int(held[i]) for i in top), np.where(live > 0, rank[code], -1)


def _changes(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    fresh = np.zeros(len(columns[0]), dtype=bool)
    fresh[:1] = True
    for column in columns:
        fresh[1:] |= column[1:] != column[:-1]
    return fresh


def _joined(runs: Runs, fresh: NDArray[np.bool_]) -> Runs:
    """Runs of one kind from one `fresh` mark to the next as one; the site if all agree."""
    segment, size, kind, site = runs
    first = np.flatnonzero(fresh)
    if not len(first):
        return runs
    agree = np.minimum.reduceat(site, first) == np.maximum.reduceat(site, first)
    return segment[first], np.add.reduceat(size, first), kind[first], np.where(agree, site[first], -1)


def _thinned(runs: Runs) -> tuple[Runs, int]:
    """Runs below a size with their neighbours of the same cell of that size, and the size (0: none).

    A cell keeps the bytes of each kind, not their order. The size is the smallest that leaves at most
    MOST_RUNS, from a pixel's worth on in steps of two.
    """
    segment, size, kind, _ = runs
    if len(size) <= MOST_RUNS:
        return runs, 0
    start = np.cumsum(size) - size
    cell = max(2, int(size.sum()) // PIXELS)
    while True:
        small, place = size < cell, start // cell
        fresh = np.ones(len(size), dtype=bool)
        fresh[1:] = ~(small[1:] & small[:-1]) | (place[1:] != place[:-1]) | (segment[1:] != segment[:-1])
        key = np.cumsum(fresh) * len(KINDS) + kind
        if len(np.unique(key)) <= MOST_RUNS or cell > size.sum():
            order = np.argsort(key, kind="stable")
            rows = [column[order] for column in runs]
            return _joined((rows[0], rows[1], rows[2], rows[3]), _changes(key[order])), cell
        cell *= 2


def _held_by(
    shot: Shot, segment: NDArray[np.int64], live: NDArray[np.int64], stack: NDArray[np.int64], count: int
) -> tuple[str, ...]:
    order = np.lexsort((live, segment))
    last = order[np.flatnonzero(np.append(np.diff(segment[order]) != 0, True))] if len(order) else order
    held = {int(segment[i]): shot.sites[stack[i]] for i in last.tolist() if live[i] > 0}
    return tuple(held.get(i, "") for i in range(count))
