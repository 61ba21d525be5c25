"""The arena of the compiled allocator, and the device in it: see algorithms/device.py.

The arena `m` begins with the cells named here; for its rows and its index see
kernels/allocator_memory.py. A request knows its *place* (private pool and stream); place and kind of pool
(large, small) together are its *list*. Lists of one pool and kind follow each other in order of their
streams and form a *group*, which counts its searches. Behind the lists of free blocks stand as many lists of
holes, and then two: deferred frees, and segments that the device gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from moexray.kernels.allocator_memory import (
    ADDRESS,
    BASE,
    BORN,
    CELLS,
    HOME,
    KEY_BITS,
    LIST,
    NEXT,
    NONE,
    PAGE,
    PREV,
    SIZE,
    STATE,
    TOP,
    USED,
    add,
    before,
    new_row,
    recycle,
    remove,
)

__all__ = [
    "Shape", "device_address", "device_has", "fresh", "leave", "new", "new_arena", "occupy", "reserve",
]  # fmt: skip

MIB = 1 << 20
ABOVE, BELOW, SPACE = 1 << 48, 1 << 46, 1 << 52  # see algorithms.device
MOST = 1 << 62  # stands for every larger number

# Cells: counters (see algorithms.counters), settings (NONE is not set), the device, the plan.
(
    RESERVED, ALLOCATED, PEAK_RESERVED, PEAK_ALLOCATED, RETRIES, OOMS, ALLOCS, FREES, MAPS, UNMAPS, STUCK,
    MAX_SPLIT, NON_SPLIT, ROUNDS_UP, COLLECT_ABOVE, LIMIT, GROWS, LARGE, THROWS, SEARCH_AGAIN,
    CAPACITY, DEVICE_USED, DOWN, NEXT_ADDRESS, NEXT_SPACE, VA_BYTES, TRACKED, PLACES, PLACE_COUNT,
    KEPT, KEPT_COUNT, STREAMS, LISTS, POOLS, FREEABLE, TENANTS, TICKETS,
) = range(CELLS, CELLS + 37)  # fmt: skip
ROUNDUP = CELLS + 37
GROUPS = ROUNDUP + 16  # where each list's count of searches stands
PENDING, TAKEN = range(2)  # the last lists
DONE = -2  # a ticket: everything waited for it


@dataclass(frozen=True, slots=True)
class Shape:
    """What an arena has to hold.

    Args:
        slots, pools, streams: How many there are.
        va_bytes: See algorithms.simulate.Plan.
        recorded: (2, segments) of int64: sizes and addresses, by size, then as recorded.
        kept: (2, segments) of int64: addresses and ends of those of the start, by address.
    """

    slots: int
    pools: int
    streams: int
    va_bytes: int
    recorded: Any
    kept: Any


def new_arena(settings: Any, shape: Shape, order: str) -> Any:
    """An arena with the settings, no block and an endless device."""
    lists, places, kept = 2 * shape.pools * shape.streams, shape.recorded.shape[1], shape.kept.shape[1]
    counts = GROUPS + lists
    freeable = counts + 2 * shape.pools
    tenants = freeable + shape.pools
    recorded = tenants + 2 * shape.slots
    top = recorded + 2 * places + 2 * kept
    m = np.empty(top + (1 << 14), dtype=np.int64)
    m[:tenants] = 0
    m[GROUPS:counts] = counts + np.arange(lists) // shape.streams
    m[tenants:recorded] = NONE
    m[recorded:top] = np.concatenate([shape.recorded.ravel(), shape.kept.ravel()])
    for cell, value in (
        (MAX_SPLIT, settings.max_split), (LIMIT, settings.limit), (CAPACITY, None),
        (NON_SPLIT, settings.max_non_split_rounding), (LARGE, settings.large_segment),
        (VA_BYTES, shape.va_bytes), (GROWS, settings.expandable), (THROWS, settings.throw_on_oom),
        (ROUNDS_UP, any(settings.roundup)),
        (DOWN, order == "descending"), (TRACKED, order == "recorded"), (NEXT_SPACE, SPACE),
        (NEXT_ADDRESS, BELOW if order == "descending" else ABOVE), (PLACES, recorded), (PLACE_COUNT, places),
        (KEPT, recorded + 2 * places), (KEPT_COUNT, kept),
        (STREAMS, shape.streams), (LISTS, lists), (POOLS, shape.pools), (FREEABLE, freeable),
        (TENANTS, tenants), (TICKETS, tenants + shape.slots), (TOP, top),
        *((ROUNDUP + i, divisions) for i, divisions in enumerate(settings.roundup)),
    ):  # fmt: skip
        m[cell] = NONE if value is None else min(value, MOST)
    m[COLLECT_ABOVE] = NONE
    if settings.gc_threshold and settings.limit is not None:
        m[COLLECT_ABOVE] = min(int(settings.gc_threshold * settings.limit), MOST)
    return m


# ---- rows, counters and the device


@njit
def new(m: Any, address: Any, size: Any, of: Any, state: Any, base: Any, page: Any) -> Any:
    """A block without neighbours, not in the index."""
    b = new_row(m)
    m[b + ADDRESS], m[b + SIZE], m[b + LIST], m[b + STATE] = address, size, of, state
    m[b + BASE], m[b + PAGE] = base, page
    m[b + PREV] = m[b + NEXT] = m[b + HOME] = m[b + BORN] = NONE
    return b


@njit
def reserve(m: Any, size: Any) -> Any:
    """Counts bytes taken from (or, negative, given back to) the device."""
    m[DEVICE_USED] += size
    m[RESERVED] += size
    m[PEAK_RESERVED] = max(m[PEAK_RESERVED], m[RESERVED])


@njit
def device_has(m: Any, size: Any) -> Any:
    """Whether the device can give so much more."""
    return m[CAPACITY] < 0 or m[DEVICE_USED] + size <= m[CAPACITY]


@njit
def _taken(m: Any) -> Any:
    """The key of the segments that the device gave."""
    return (2 * m[LISTS] + TAKEN) << KEY_BITS


@njit
def _overlapping(m: Any, address: Any, size: Any) -> Any:
    """A segment that was given and overlaps, or NONE; only known where the order of addresses asks."""
    row = before(m, _taken(m), address + size)
    return row if row != NONE and m[row + ADDRESS] + m[row + SIZE] > address else NONE


@njit
def occupy(m: Any, address: Any, size: Any) -> Any:
    """Notes where a segment lies, if the order of addresses asks for it."""
    if m[TRACKED]:
        add(m, new(m, address, size, 0, USED, address, 0), _taken(m))


@njit
def leave(m: Any, address: Any, size: Any) -> Any:
    """Forgets a segment."""
    if m[TRACKED]:
        row = _overlapping(m, address, size)
        if row != NONE:
            remove(m, row)
            recycle(m, row)


@njit
def _first_not_below(m: Any, at: Any, count: Any, value: Any) -> Any:
    """Place of the first of `count` sorted cells from `at` on that is not below a value."""
    low, high = 0, count
    while low < high:
        half = (low + high) >> 1
        if m[at + half] < value:
            low = half + 1
        else:
            high = half
    return low


@njit
def fresh(m: Any, cell: Any, size: Any) -> Any:
    """The next address where nothing lies from the start; the cell holds the place from which to look."""
    place, kept, count = m[cell], m[KEPT], m[KEPT_COUNT]
    while True:
        address = place - size if m[DOWN] else place
        hit = _first_not_below(m, kept, count, address + size) - 1
        if hit < 0 or m[kept + count + hit] <= address:
            m[cell] = address if m[DOWN] else address + size
            return address
        place = m[kept + hit] if m[DOWN] else m[kept + count + hit]


@njit
def _recorded_place(m: Any, size: Any) -> Any:
    """Where the recording had a segment of this size and nothing lies now, or NONE."""
    sizes = m[PLACES]
    low = _first_not_below(m, sizes, m[PLACE_COUNT], size)
    while low < m[PLACE_COUNT] and m[sizes + low] == size:
        address = m[sizes + m[PLACE_COUNT] + low]
        if _overlapping(m, address, size) == NONE:
            return address
        low += 1
    return NONE


@njit
def device_address(m: Any, size: Any) -> Any:
    """Address of a new segment."""
    address = _recorded_place(m, size) if m[TRACKED] else NONE
    if address == NONE:
        address = fresh(m, NEXT_ADDRESS, size)
    occupy(m, address, size)
    return address
