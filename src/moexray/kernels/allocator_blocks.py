"""Blocks, the device and the search for a free block, compiled: see algorithms/allocator.py and device.py.

The arena `m` begins with the cells named here; for its rows and its index see
kernels/allocator_memory.py. A request knows its *place* (private pool and stream); place and kind of pool
(large, small) together are its *list*. Lists of one pool and kind follow each other in order of their
streams and form a *group*, which counts its searches. Behind the lists of free blocks stand as many lists of
holes, one of deferred frees and one of the segments that the device gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from moexray.algorithms.device import ABOVE, BELOW, SPACE
from moexray.kernels.allocator_memory import (
    ADDRESS,
    BASE,
    BORN,
    CELLS,
    HANDLES,
    HOME,
    KEY_BITS,
    KEYS,
    LIST,
    MAPPED,
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
    first_at,
    following,
    new_row,
    recycle,
    remove,
)

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Settings

__all__ = ["Shape", "arena"]

MIB = 1 << 20
MOST = 1 << 62  # stands for every larger number

# Cells: counters (see algorithms.counters), settings (NONE is not set), the device, the plan.
(
    RESERVED, ALLOCATED, PEAK_RESERVED, PEAK_ALLOCATED, RETRIES, OOMS, ALLOCS, FREES, MAPS, UNMAPS, STUCK,
    MAX_SPLIT, NON_SPLIT, ROUNDS_UP, COLLECT_ABOVE, LIMIT, GROWS, LARGE, THROWS, SEARCH_AGAIN,
    CAPACITY, DEVICE_USED, DOWN, NEXT_ADDRESS, NEXT_SPACE, VA_BYTES, TRACKED, PLACES, PLACE_COUNT,
    STREAMS, LISTS, POOLS, FREEABLE, TENANTS, TICKETS,
) = range(CELLS, CELLS + 35)  # fmt: skip
ROUNDUP = CELLS + 35
GROUPS = ROUNDUP + 16  # where each list's count of searches stands
DONE = -2  # a ticket: everything waited for it


@dataclass(frozen=True, slots=True)
class Shape:
    """What an arena has to hold.

    Args:
        slots, pools, streams: How many there are.
        va_bytes: See algorithms.simulate.Plan.
        recorded: (2, segments) of int64: sizes and addresses, by size, then as recorded.
    """

    slots: int
    pools: int
    streams: int
    va_bytes: int
    recorded: Any


def arena(settings: Settings, shape: Shape, order: str) -> Any:
    """An arena with the settings, no block and an endless device."""
    lists, places = 2 * shape.pools * shape.streams, shape.recorded.shape[1]
    counts = GROUPS + lists
    freeable = counts + 2 * shape.pools
    tenants = freeable + shape.pools
    recorded = tenants + 2 * shape.slots
    top = recorded + 2 * places
    m = np.empty(top + (1 << 14), dtype=np.int64)
    m[:tenants] = 0
    m[GROUPS:counts] = counts + np.arange(lists) // shape.streams
    m[tenants:recorded] = NONE
    m[recorded:top] = shape.recorded.ravel()
    for cell, value in (
        (MAX_SPLIT, settings.max_split), (LIMIT, settings.limit), (CAPACITY, None),
        (NON_SPLIT, settings.max_non_split_rounding), (LARGE, settings.large_segment),
        (VA_BYTES, shape.va_bytes), (GROWS, settings.expandable), (THROWS, settings.throw_on_oom),
        (ROUNDS_UP, any(settings.roundup)),
        (DOWN, order == "descending"), (TRACKED, order == "recorded"), (NEXT_SPACE, SPACE),
        (NEXT_ADDRESS, BELOW if order == "descending" else ABOVE), (PLACES, recorded), (PLACE_COUNT, places),
        (STREAMS, shape.streams), (LISTS, lists), (POOLS, shape.pools), (FREEABLE, freeable),
        (TENANTS, tenants), (TICKETS, tenants + shape.slots), (TOP, top),
        *((ROUNDUP + i, divisions) for i, divisions in enumerate(settings.roundup)),
    ):  # fmt: skip
        m[cell] = NONE if value is None else min(value, MOST)
    m[COLLECT_ABOVE] = NONE
    if settings.gc_threshold and settings.limit is not None:
        m[COLLECT_ABOVE] = min(int(settings.gc_threshold * settings.limit), MOST)
    return m


# ---- counters and the device


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
    """The key under which given segments stand; the one below is that of deferred frees."""
    return (2 * m[LISTS] + 1) << KEY_BITS


@njit
def occupy(m: Any, address: Any, size: Any) -> Any:
    """Notes where a segment lies, if the order of addresses asks for it."""
    if m[TRACKED]:
        add(m, new(m, address, size, 0, USED, address, 0), _taken(m))


@njit
def leave(m: Any, address: Any) -> Any:
    """Forgets a segment."""
    if m[TRACKED]:
        row = before(m, _taken(m), address + 1)
        if row != NONE and m[row + ADDRESS] == address:
            remove(m, row)
            recycle(m, row)


@njit
def _recorded_place(m: Any, size: Any) -> Any:
    """Where the recording had a segment of this size and nothing lies now, or NONE."""
    sizes, low, count = m[PLACES], 0, m[PLACE_COUNT]
    while low < count:
        half = (low + count) >> 1
        if m[sizes + half] < size:
            low = half + 1
        else:
            count = half
    while low < m[PLACE_COUNT] and m[sizes + low] == size:
        address = m[sizes + m[PLACE_COUNT] + low]
        last = before(m, _taken(m), address + size)
        if last == NONE or m[last + ADDRESS] + m[last + SIZE] <= address:
            return address
        low += 1
    return NONE


@njit
def device_address(m: Any, size: Any) -> Any:
    """Address of a new segment."""
    address = _recorded_place(m, size) if m[TRACKED] else NONE
    if address == NONE and m[DOWN]:
        m[NEXT_ADDRESS] -= size
        address = m[NEXT_ADDRESS]
    elif address == NONE:
        address = m[NEXT_ADDRESS]
        m[NEXT_ADDRESS] += size
    occupy(m, address, size)
    return address


# ---- sizes


@njit
def round_up(m: Any, request: Any) -> Any:
    """See algorithms.blocks.round_size."""
    if request < 512:
        return 512
    if m[ROUNDS_UP]:
        bits = frexp(float(request))[1]
        divisions = m[ROUNDUP + min(max(bits - 21, 0), 15)]
        if divisions > 1 and request >> 9 >= divisions and request > 512 * divisions:
            floor = 1 << (bits - 1)
            if request == floor:
                return request
            step = floor >> (frexp(float(divisions))[1] - 1)
            return (request + step - 1) // step * step if step else 2 * floor
    return (request + 511) >> 9 << 9


@njit
def segment_bytes(m: Any, size: Any) -> Any:
    """See algorithms.blocks.segment_size."""
    if size <= MIB:
        return 2 * MIB
    if size < 10 * MIB:
        return m[LARGE]
    return (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)


# ---- blocks


@njit
def is_small(m: Any, of: Any) -> Any:
    """Whether a list is of the small pool."""
    return of // m[STREAMS] & 1


@njit
def link(m: Any, left: Any, right: Any) -> Any:
    """Makes two blocks neighbours."""
    if left != NONE:
        m[left + NEXT] = right
    if right != NONE:
        m[right + PREV] = left


@njit
def new(m: Any, address: Any, size: Any, of: Any, state: Any, base: Any, page: Any) -> Any:
    """A block without neighbours, not in the index."""
    b = new_row(m)
    m[b + ADDRESS], m[b + SIZE], m[b + LIST], m[b + STATE] = address, size, of, state
    m[b + BASE], m[b + PAGE] = base, page
    m[b + PREV] = m[b + NEXT] = m[b + HOME] = m[b + BORN] = NONE
    return b


@njit
def part(m: Any, b: Any, address: Any, size: Any) -> Any:
    """A new block of the same segment and state."""
    return new(m, address, size, m[b + LIST], m[b + STATE], m[b + BASE], m[b + PAGE])


@njit
def add_free(m: Any, b: Any) -> Any:
    """Puts a free block or a hole into its list."""
    of = m[b + LIST]
    if m[b + STATE] & MAPPED:
        m[b + BORN] = m[m[GROUPS + of]]
        add(m, b, of << KEY_BITS | m[b + SIZE])
    else:
        add(m, b, (m[LISTS] + of) << KEY_BITS)


@njit
def merge(m: Any, b: Any) -> Any:
    """Joins a block that is not in the index with its free neighbours of the same mapping."""
    left, right, alike = m[b + PREV], m[b + NEXT], m[b + STATE]
    if left != NONE and m[left + STATE] == alike:
        remove(m, left)
        m[b + ADDRESS] = m[left + ADDRESS]
        m[b + SIZE] += m[left + SIZE]
        m[b + PREV] = NONE
        link(m, m[left + PREV], b)
        recycle(m, left)
    if right != NONE and m[right + STATE] == alike:
        remove(m, right)
        m[b + SIZE] += m[right + SIZE]
        m[b + NEXT] = NONE
        link(m, b, m[right + NEXT])
        recycle(m, right)


@njit
def insert(m: Any, b: Any) -> Any:
    """Makes a used block free."""
    m[b + STATE] = MAPPED
    merge(m, b)
    add_free(m, b)


@njit
def free(m: Any, b: Any) -> Any:
    """See CachingAllocator.free."""
    m[ALLOCATED] -= m[b + SIZE]
    insert(m, b)


@njit
def use(m: Any, b: Any) -> Any:
    """Marks a block as allocated and counts it."""
    m[b + STATE] = USED | MAPPED
    m[ALLOCATED] += m[b + SIZE]
    m[PEAK_ALLOCATED] = max(m[PEAK_ALLOCATED], m[ALLOCATED])


# ---- deferred frees: a block knows its slot (in BORN), a slot its block, or DONE, or NONE


@njit
def defer(m: Any, b: Any, slot: Any) -> Any:
    """See CachingAllocator.defer."""
    m[ALLOCATED] -= m[b + SIZE]
    earlier = m[m[TICKETS] + slot]
    if earlier >= 0:
        m[earlier + BORN] = NONE
    m[m[TICKETS] + slot] = b
    m[b + BORN] = slot
    add(m, b, (2 * m[LISTS]) << KEY_BITS)


@njit
def complete(m: Any, b: Any) -> Any:
    """See CachingAllocator.complete."""
    remove(m, b)
    if m[b + BORN] != NONE:
        m[m[TICKETS] + m[b + BORN]] = DONE
    insert(m, b)


# ---- search and split


@njit
def find(m: Any, size: Any, of: Any) -> Any:
    """Best fit; a first candidate that the split limits refuse ends the search. NONE: nothing."""
    m[m[GROUPS + of]] += 1
    bucket, place = first_at(m, of << KEY_BITS | size)
    while bucket != NONE and m[bucket + KEYS + place] >> KEY_BITS == of:
        b = m[bucket + HANDLES + place]
        if m[b + PAGE] and not m[GROWS]:
            bucket, place = following(m, bucket, place)
            continue
        if m[b + PAGE]:
            b = _before_the_tail(m, bucket, place)
        split = m[MAX_SPLIT]
        if split >= 0 and m[b + SIZE] >= (split if size < split else size + m[NON_SPLIT]):
            return NONE
        return b
    return NONE


@njit
def _reach(m: Any, b: Any) -> Any:
    right = m[b + NEXT]
    return m[b + SIZE] + (m[right + SIZE] if right != NONE and not m[right + STATE] & MAPPED else 0)


@njit
def _before_the_tail(m: Any, bucket: Any, place: Any) -> Any:
    """See algorithms.expandable.before_the_tail."""
    b = m[bucket + HANDLES + place]
    of = m[b + LIST]
    while m[b + PAGE]:
        bucket, place = following(m, bucket, place)
        if bucket == NONE or m[bucket + KEYS + place] >> KEY_BITS != of:
            break
        other = m[bucket + HANDLES + place]
        if _reach(m, other) >= _reach(m, b):
            break
        b = other
    return b


@njit
def _splits(m: Any, b: Any, size: Any, rest: Any) -> Any:
    if m[GROWS] or is_small(m, m[b + LIST]):
        return rest >= 512
    return rest > MIB and (m[MAX_SPLIT] < 0 or size < m[MAX_SPLIT])


@njit
def take(m: Any, b: Any, size: Any) -> Any:
    """See CachingAllocator.take."""
    if m[b + HOME] != NONE:
        remove(m, b)
    rest = m[b + SIZE] - size
    if _splits(m, b, size, rest):
        other = part(m, b, m[b + ADDRESS] + size, rest)
        link(m, other, m[b + NEXT])
        link(m, b, other)
        m[b + SIZE] = size
        add_free(m, other)
    use(m, b)
