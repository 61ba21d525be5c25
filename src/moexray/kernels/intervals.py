"""Packing of lives into one buffer, compiled; the plain twin is algorithms/intervals.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["pack", "pack_in_time"]


PASSES = 8  # looks at the neighbours before they are sorted


@njit(cache=True)
def pack(start: Ints, end: Ints, size: Ints, order: Ints) -> Ints:
    """See algorithms.intervals.pack.

    Lives stand sorted by start in the leaves of a tree that holds, for each subtree, the latest end of
    the placed ones: those that meet a life are found without looking at the others.
    """
    count = len(start)
    by_start = np.argsort(start, kind="mergesort")
    sorted_start = start[by_start]
    leaf_of = np.empty(count, np.int64)
    leaf_of[by_start] = np.arange(count)
    leaves = 1
    while leaves < count:
        leaves *= 2
    latest = np.full(2 * leaves, np.int64(-(1 << 62)))
    lows, highs = np.empty(leaves, np.int64), np.empty(leaves, np.int64)  # of the placed, by leaf
    nodes, firsts, widths = np.empty(128, np.int64), np.empty(128, np.int64), np.empty(128, np.int64)
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)
    offset = np.full(count, -1, np.int64)
    for i in order:
        bound = np.searchsorted(sorted_start, end[i])  # leaves before it begin before this one's end
        found = 0
        nodes[0], firsts[0], widths[0], top = 1, 0, leaves, 1
        while top:
            top -= 1
            node, first, width = nodes[top], firsts[top], widths[top]
            if width == 1:
                if latest[node] > start[i]:
                    low[found], high[found] = lows[first], highs[first]
                    found += 1
                continue
            width //= 2
            for child, begin in ((2 * node + 1, first + width), (2 * node, first)):
                if begin < bound and latest[child] > start[i]:
                    nodes[top], firsts[top], widths[top] = child, begin, width
                    top += 1
        at = _lowest_gap(low, high, found, size[i])
        offset[i] = at
        leaf = leaf_of[i]
        lows[leaf], highs[leaf] = at, at + size[i]
        node = leaves + leaf
        while node and latest[node] < end[i]:
            latest[node] = end[i]
            node //= 2
    return offset


@njit(cache=True)
def _lowest_gap(low: Ints, high: Ints, count: int, size: int) -> int:
    """The lowest place for `size` bytes beside [low, high) of the first `count`; reorders them.

    Pushed up by all that is in the way until nothing is; that takes few looks as a rule, else sorted.
    """
    at = 0
    for _ in range(PASSES):
        moved, kept = False, 0
        for k in range(count):
            if high[k] <= at:
                continue
            if low[k] < at + size:
                at = high[k]
                moved = True
            else:
                low[kept], high[kept] = low[k], high[k]
                kept += 1
        count = kept
        if not moved:
            return at
    for k in np.argsort(low[:count]):
        if low[k] - at >= size:
            break
        at = max(at, high[k])
    return at


@njit(cache=True)
def pack_in_time(start: Ints, end: Ints, size: Ints) -> Ints:
    """The offsets of `pack` in the order of the starts (then of the rows), with a list of the living.

    Work grows with the lives that are alive at a start, not with those that meet a life.
    """
    count = len(start)
    by_start = np.argsort(start, kind="mergesort")
    offset = np.full(count, -1, np.int64)
    living = np.empty(count, np.int64)  # in the order of their offsets
    alive = 0
    for i in by_start:
        kept, at, place = 0, np.int64(0), -1
        for k in range(alive):
            j = living[k]
            if end[j] <= start[i]:
                continue
            if place < 0:
                if offset[j] - at >= size[i]:
                    place = kept
                else:
                    at = max(at, offset[j] + size[j])
            living[kept] = j
            kept += 1
        if place < 0:
            place = kept
        for k in range(kept, place, -1):
            living[k] = living[k - 1]
        living[place] = i
        alive = kept + 1
        offset[i] = at
    return offset
