"""How the compiled allocator grows and gives back: see algorithms/allocator.py and expandable.py.

Words and cells: kernels/allocator_memory.py and allocator_arena.py.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from moexray.kernels.allocator_arena import (
    ALLOCS,
    COLLECT_ABOVE,
    FREEABLE,
    FREES,
    GROUPS,
    GROWS,
    LARGE,
    LIMIT,
    LISTS,
    MAPS,
    MAX_SPLIT,
    MIB,
    NEXT_SPACE,
    OOMS,
    POOLS,
    RESERVED,
    RETRIES,
    SEARCH_AGAIN,
    STREAMS,
    THROWS,
    UNMAPS,
    VA_BYTES,
    device_address,
    device_has,
    fresh,
    leave,
    new,
    reserve,
)
from moexray.kernels.allocator_blocks import (
    add_free,
    complete,
    find,
    is_small,
    link,
    merge,
    part,
    round_up,
    segment_bytes,
    take,
)
from moexray.kernels.allocator_memory import (
    ADDRESS,
    BASE,
    BORN,
    HANDLES,
    KEY_BITS,
    KEYS,
    MAPPED,
    NEXT,
    NONE,
    PAGE,
    PREV,
    SIZE,
    STATE,
    USED,
    first_at,
    following,
    listed,
    recycle,
    remove,
)

__all__ = ["malloc", "release_cached", "stuck"]


@njit
def malloc(m: Any, request: Any, place: Any) -> Any:
    """See CachingAllocator.malloc; NONE where nothing fits."""
    size = round_up(m, request)
    of = place + m[STREAMS] if size <= MIB else place
    b = find(m, size, of)
    if b == NONE:
        b = _miss(m, size, of)
        if b == NONE:
            m[OOMS] += 1
            return b
    take(m, b, size)
    return b


@njit
def _miss(m: Any, size: Any, of: Any) -> Any:
    _collect_garbage(m)
    b = _grow(m, size, of)
    if b != NONE or (m[THROWS] and not _has_room(m, segment_bytes(m, size))):
        return b
    if _release_oversize(m, size, of):
        b = _grow(m, size, of)
    if b == NONE:
        release_cached(m)
        m[RETRIES] += 1
        if m[SEARCH_AGAIN]:
            b = find(m, size, of)
        if b == NONE:
            b = _grow(m, size, of)
    return b


@njit
def _has_room(m: Any, size: Any) -> Any:
    return m[LIMIT] < 0 or m[RESERVED] + size <= m[LIMIT]


@njit
def _grow(m: Any, size: Any, of: Any) -> Any:
    """A block of at least `size` from the device, NONE where it is full; a new one is not in the index."""
    wanted = segment_bytes(m, size)
    if not _has_room(m, wanted):
        return NONE
    if m[GROWS]:
        return _expand(m, size, of)
    if not device_has(m, wanted):
        return NONE
    address = device_address(m, wanted)
    m[ALLOCS] += 1
    reserve(m, wanted)
    return new(m, address, wanted, of, MAPPED, address, 0)


# ---- expandable segments


@njit
def _whole_pages(m: Any, b: Any) -> Any:
    page, base = m[b + PAGE], m[b + BASE]
    start = base + (m[b + ADDRESS] - base + page - 1) // page * page
    return start, base + (m[b + ADDRESS] + m[b + SIZE] - base) // page * page


@njit
def _growth(m: Any, size: Any, of: Any) -> Any:
    """The hole of lowest address with room for `size` bytes, or the free block before it, or NONE."""
    holes = m[LISTS] + of
    bucket, place = first_at(m, holes << KEY_BITS)
    while bucket != NONE and m[bucket + KEYS + place] >> KEY_BITS == holes:
        b = m[bucket + HANDLES + place]
        left = m[b + PREV]
        if left != NONE and not m[left + STATE] & USED:
            b = left
        missing, at = size, b
        while at != NONE and not m[at + STATE] & USED and missing > 0:
            missing -= m[at + SIZE]
            at = m[at + NEXT]
        if missing <= 0:
            return b
        bucket, place = following(m, bucket, place)
    return NONE


@njit
def _open_segment(m: Any, of: Any) -> Any:
    page = 2 * MIB if is_small(m, of) else m[LARGE]
    size = (m[VA_BYTES] + page - 1) // page * page
    start = fresh(m, NEXT_SPACE, size)
    hole = new(m, start, size, of, 0, start, page)
    add_free(m, hole)
    return hole


@njit
def _expand(m: Any, size: Any, of: Any) -> Any:
    if size > m[VA_BYTES]:
        return NONE
    b = _growth(m, size, of)
    if b == NONE:
        b = _open_segment(m, of)
    while not m[b + STATE] & MAPPED or m[b + SIZE] < size:
        hole, missing = b, size
        if m[b + STATE] & MAPPED:
            hole, missing = m[b + NEXT], size - m[b + SIZE]
        if hole == NONE:
            return NONE
        page = m[b + PAGE]
        wanted = min((missing + page - 1) // page * page, m[hole + SIZE])
        if not device_has(m, wanted):
            return NONE
        b = _map_range(m, hole, wanted)
    return b


@njit
def _map_range(m: Any, hole: Any, size: Any) -> Any:
    """Maps the first bytes of a hole; the free block that they then belong to."""
    remove(m, hole)
    if m[hole + SIZE] > size:
        rest = part(m, hole, m[hole + ADDRESS] + size, m[hole + SIZE] - size)
        link(m, rest, m[hole + NEXT])
        link(m, hole, rest)
        m[hole + SIZE] = size
        add_free(m, rest)
    m[hole + STATE] = MAPPED
    merge(m, hole)
    add_free(m, hole)
    reserve(m, size)
    m[MAPS] += size // m[hole + PAGE]
    return hole


@njit
def _unmap(m: Any, b: Any) -> Any:
    """Unmaps the whole pages inside a free block; a segment of which nothing is mapped any more goes."""
    start, end = _whole_pages(m, b)
    if end <= start:
        return
    remove(m, b)
    left, right = start - m[b + ADDRESS], m[b + ADDRESS] + m[b + SIZE] - end
    if left:
        front = part(m, b, m[b + ADDRESS], left)
        link(m, m[b + PREV], front)
        link(m, front, b)
        add_free(m, front)
    if right:
        back = part(m, b, end, right)
        link(m, back, m[b + NEXT])
        link(m, b, back)
        add_free(m, back)
    m[b + ADDRESS], m[b + SIZE], m[b + STATE] = start, end - start, 0
    merge(m, b)
    reserve(m, start - end)
    m[UNMAPS] += (end - start) // m[b + PAGE]
    if m[b + PREV] == NONE and m[b + NEXT] == NONE:
        recycle(m, b)
    else:
        add_free(m, b)


# ---- giving back


@njit
def _is_split(m: Any, b: Any) -> Any:
    return m[b + PREV] != NONE or m[b + NEXT] != NONE


@njit
def _is_whole(m: Any, b: Any) -> Any:
    return not _is_split(m, b) and not m[b + PAGE]


@njit
def _drop(m: Any, b: Any) -> Any:
    """Gives a whole free segment back to the device."""
    remove(m, b)
    m[FREES] += 1
    reserve(m, -m[b + SIZE])
    leave(m, m[b + ADDRESS], m[b + SIZE])
    recycle(m, b)


@njit
def release_cached(m: Any) -> Any:
    """See CachingAllocator.release_cached."""
    for b in listed(m, 2 * m[LISTS], 2 * m[LISTS] + 1):
        complete(m, b)
    for pool in range(m[POOLS]):
        if pool == 0 or m[m[FREEABLE] + pool]:
            first = 2 * pool * m[STREAMS]
            for b in listed(m, first, first + 2 * m[STREAMS]):
                if _is_whole(m, b):
                    _drop(m, b)
                elif m[b + PAGE]:
                    _unmap(m, b)


@njit
def _release_oversize(m: Any, size: Any, of: Any) -> Any:
    """See CachingAllocator._release_oversize."""
    split = m[MAX_SPLIT]
    if split < 0:
        return False
    want, total = max(size, split), 0
    mine = listed(m, of, of + 1)
    at = 0
    while at < mine.size and m[mine[at] + SIZE] < want:
        at += 1
    if at < mine.size and _is_whole(m, mine[at]):
        _drop(m, mine[at])
        return True
    while at > 0 and total < want:
        at -= 1
        b = mine[at]
        if m[b + SIZE] < split:
            break
        if _is_whole(m, b):
            total += m[b + SIZE]
            _drop(m, b)
    return total >= want


@njit
def _collect_garbage(m: Any) -> Any:
    """Frees unused segments of the default large pool of at least average age."""
    if m[COLLECT_ABOVE] < 0:
        return
    target, now = m[RESERVED] - m[COLLECT_ABOVE], m[m[GROUPS]]
    while target > 0:
        blocks = listed(m, 0, m[STREAMS])
        count = total = freed = 0
        for b in blocks:
            if not _is_split(m, b):
                blocks[count] = b
                count += 1
                total += now - m[b + BORN]
        for b in blocks[:count]:
            if not m[b + PAGE] and (now - m[b + BORN]) * count >= total:
                target -= m[b + SIZE]
                freed += 1
                _drop(m, b)
        if not freed:
            return


@njit
def stuck(m: Any) -> Any:
    """See CachingAllocator.stuck."""
    held = 0
    for b in listed(m, 0, m[LISTS]):
        if m[b + PAGE]:
            start, end = _whole_pages(m, b)
            held += m[b + SIZE] - max(end - start, 0)
        elif _is_split(m, b):
            held += m[b + SIZE]
    return held
