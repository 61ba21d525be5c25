"""Tensors as intervals of time: peaks, packing into one buffer, the bound that no plan can beat.

Glossary: a *life* is [start, end) in any units that order the events, with a size; two lives *meet*
if some moment belongs to both; *live bytes* are the sizes of the lives of one moment. Since all
lives of one moment need their own bytes, the peak of live bytes is the least that any plan can take.

Sources: the bound and packing by first fit in decreasing size or length are the usual offline
methods of dynamic storage allocation (Wilson et al. 1995; Gergov 1999).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = [
    "ALIGN",
    "aligned",
    "meetings",
    "moments",
    "next_at",
    "oldest_first",
    "pack",
    "pack_in_time",
    "peak",
    "peak_by_group",
    "shared_buffers",
    "size_class",
    "touched",
]

ALIGN = 512  # bytes, the smallest block of PyTorch's allocator (c10 kMinBlockSize)


def aligned(size: Ints) -> Ints:
    """Sizes rounded up to ALIGN; 0 stays 0."""
    return -(-size // ALIGN) * ALIGN


def next_at(key: Ints, is_start: NDArray[np.bool_]) -> Ints:
    """For each event the next one of the same key, -1 if there is none or this is no start."""
    order = np.argsort(key, kind="stable")
    out = np.full(len(key), -1, np.int64)
    same = key[order][1:] == key[order][:-1]
    out[order[:-1][same]] = order[1:][same]
    return np.where(is_start, out, -1)


def oldest_first(key: Ints, is_start: NDArray[np.bool_]) -> Ints:
    """For each start the stop that ends it, if each stop ends the oldest open start of its key; else -1."""
    out = np.full(len(key), -1, np.int64)
    waiting: dict[int, deque[int]] = {}
    for i, (k, starts) in enumerate(zip(key.tolist(), is_start.tolist(), strict=True)):
        if starts:
            waiting.setdefault(k, deque()).append(i)
        elif queue := waiting.get(k):
            out[queue.popleft()] = i
    return out


def moments(start: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Live bytes over time; at equal times ends come first.

    Returns:
        (order, sign, live): order indexes the lives, twice each; sign is 1 for a start; live is the
        bytes after it.
    """
    count = len(start)
    time = np.concatenate([end, start])
    order = np.argsort(time, kind="stable")
    sign = np.where(order < count, -1, 1)
    row = order % count if count else order
    return row, sign, np.cumsum(sign * size[row])


def peak(start: Ints, end: Ints, size: Ints) -> tuple[int, int]:
    """The most bytes alive at once (the bound), and the first moment when they are; (0, 0) for no lives."""
    if not len(start):
        return 0, 0
    row, _, live = moments(start, end, size)
    at = int(np.argmax(live))
    return int(live[at]), int(start[row[at]])


def peak_by_group(group: Ints, start: Ints, end: Ints, size: Ints, groups: int) -> Ints:
    """The most bytes alive at once within each group, shape [groups]."""
    out = np.zeros(groups, np.int64)
    if not len(start):
        return out
    row, sign, _ = moments(start, end, size)
    by_group = np.argsort(group[row], kind="stable")
    of = group[row][by_group]
    sums = np.cumsum((sign * size[row])[by_group])  # every group ends at 0, so the sums go on from 0
    np.maximum.at(out, of, sums)
    return out


def meetings(start: Ints, end: Ints) -> int:
    """How many pairs of lives meet: the work of packing."""
    before = np.searchsorted(np.sort(end), start, side="right")  # ended by each start
    begun = np.searchsorted(np.sort(start), start, side="left")
    ties = np.unique(start, return_counts=True)[1]
    return int((begun - before).sum() + (ties * (ties - 1) // 2).sum())


def pack(start: Ints, end: Ints, size: Ints, order: Ints) -> Ints:
    """Offsets in one buffer: each life, in `order`, at the lowest place that is free all its time.

    Args:
        start: [lives].
        end: [lives], after the start.
        size: [lives], bytes; the caller rounds them.
        order: [lives], indices of the lives.

    Returns:
        [lives], bytes from the start of the buffer. Lives that meet do not overlap.
    """
    offset = np.full(len(start), -1, np.int64)
    for done, i in enumerate(order.tolist()):
        placed = order[:done]
        near = placed[(start[placed] < end[i]) & (end[placed] > start[i])]
        near = near[np.argsort(offset[near], kind="stable")]
        at = 0
        for low, high in zip(offset[near].tolist(), (offset[near] + size[near]).tolist(), strict=True):
            if low - at >= size[i]:
                break
            at = max(at, high)
        offset[i] = at
    return offset


def pack_in_time(start: Ints, end: Ints, size: Ints) -> Ints:
    """`pack` in the order of the starts, equal ones in the order of the rows."""
    return pack(start, end, size, np.argsort(start, kind="stable"))


def size_class(size: Ints, per_doubling: int) -> Ints:
    """Sizes rounded up to classes: `per_doubling` (a power of two) equal steps from 2^k to 2^(k+1).

    0 keeps sizes as they are, but for ALIGN; so do classes finer than ALIGN.
    """
    size = aligned(size)
    if per_doubling == 0:
        return size
    floor = np.left_shift(1, np.log2(np.maximum(size, 1)).astype(np.int64))
    step = np.maximum(floor // per_doubling, ALIGN)
    return np.asarray(-(-size // step) * step)


def shared_buffers(start: Ints, end: Ints, size: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """Buffers that lives of the same key and size take in turn.

    Args:
        start: [lives].
        end: [lives].
        size: [lives], bytes, already rounded to classes.
        keys: [lives], who may share (a layer, a step).

    Returns:
        (key, bytes, buffers) in rows of shape [3, groups]; and the row of each life.
    """
    pairs, group = np.unique(np.stack([keys, size], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    most = peak_by_group(group, start, end, np.ones(len(start), np.int64), len(pairs))
    return np.stack([pairs[:, 0], pairs[:, 1], most]), group


def touched(start: Ints, address: Ints, size: Ints, gone: Ints | None = None) -> int:
    """Bytes of address space that the lives took, each byte once.

    Args:
        start: [lives].
        address: [lives].
        size: [lives].
        gone: [lives], when the device got the memory back (a segment freed), large if never.

    Returns:
        The most at any moment: bytes count from the first life that touches their region until it
        is gone.
    """
    if not len(start):
        return 0
    gone = np.zeros(len(start), np.int64) if gone is None else gone
    order = np.lexsort((address, gone))
    low, high, group = address[order], (address + size)[order], gone[order]
    first = np.ones(len(order), bool)
    first[1:] = group[1:] != group[:-1]
    number = np.cumsum(first) - 1
    # The furthest end so far within the group: groups are kept apart by an offset beyond all addresses.
    span = int(high.max() - low.min()) + 1
    if span * (int(number[-1]) + 1) < 1 << 62:
        shift = number * span - int(low.min())
        reach = np.maximum.accumulate(high + shift) - shift
    else:
        parts = np.split(high, np.flatnonzero(first)[1:])
        reach = np.concatenate([np.maximum.accumulate(part) for part in parts])
    before = np.where(first, low, np.concatenate([[0], reach[:-1]]))
    fresh = np.maximum(high - np.maximum(low, before), 0)
    taken = np.bincount(number, weights=fresh).astype(np.int64)
    born = np.minimum.reduceat(start[order], np.flatnonzero(first))
    ends = group[first]
    last = int(max(start.max(), born.max())) + 1
    return peak(born, np.where(ends > born, ends, last), taken)[0]
