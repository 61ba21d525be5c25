"""Blocks and the search for a free one, compiled: see algorithms/allocator.py and expandable.py.

Words and cells: kernels/allocator_memory.py and allocator_arena.py.
"""

from __future__ import annotations

from math import frexp
from typing import Any

from numba import njit

from moexray.kernels.allocator_arena import (
    ALLOCATED,
    DONE,
    GROUPS,
    GROWS,
    LARGE,
    LISTS,
    MAX_SPLIT,
    MIB,
    NON_SPLIT,
    PEAK_ALLOCATED,
    PENDING,
    ROUNDS_UP,
    ROUNDUP,
    STREAMS,
    TICKETS,
    new,
)
from moexray.kernels.allocator_memory import (
    ADDRESS,
    BASE,
    BORN,
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
    USED,
    add,
    first_at,
    following,
    recycle,
    remove,
)

__all__ = [
    "add_free", "complete", "defer", "find", "free", "is_small", "link", "merge", "part", "round_up",
    "segment_bytes", "take", "use",
]  # fmt: skip


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
    add(m, b, (2 * m[LISTS] + PENDING) << KEY_BITS)


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
