"""A recorded history under other allocator settings, compiled: the twin of algorithms/simulate.py.

Same rules, same order, same addresses: the twin test compares each counter and each block. A plan is
turned into arrays once (`arrays`): each recorded address becomes a number (*slot*), so that the loop looks
nothing up. What no device gives (sizes of terabytes, torn segments) is left to the plain twin.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from moexray.kernels import allocator_arena as arena
from moexray.kernels import allocator_blocks as blocks
from moexray.kernels import allocator_growth as growth
from moexray.kernels import allocator_memory as memory
from moexray.kernels.allocator_memory import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Arrays", "arrays", "simulate", "simulated", "takes"]

# Kinds of steps, see algorithms.simulate.
ALLOC, DEFER, FREE, TRY = range(4)
EMPTY_CACHE, FREEABLE = -1, -2
DEFAULT_POOL = (0, 0)

MOST_BYTES = 1 << (memory.KEY_BITS - 1)  # of a request, a segment, an address space
MOST_LISTS = 1 << (62 - memory.KEY_BITS)
MOST_ADDRESS = 1 << 60
# Columns of Arrays.start.
_HEAD, _AT, _BYTES, _PLACE, _SMALL, _SLOT, _PAGE, _STREAM, _STATE = range(9)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A plan as arrays.

    Args:
        start: (blocks, 9) of int64: size of the segment that it begins or 0, address, size, place, whether
            of the small pool, slot (NONE is free), page (0 is not expandable), stream, state.
        kinds, slots, sizes, places: Of each step; see algorithms.simulate.Plan.
        shape: Counts, and what the device needs to know.
    """

    start: Any
    kinds: Any
    slots: Any
    sizes: Any
    places: Any
    shape: arena.Shape


def takes(settings: Any) -> bool:
    """Whether the compiled twin can replay under these settings."""
    return bool(settings.large_segment < MOST_BYTES)


def arrays(plan: Any) -> Arrays | None:
    """The plan as arrays; None where it holds what no device gives, which only the plain twin takes."""
    pools = sorted({DEFAULT_POOL} | {s.pool for s in plan.start} | {s[4] for s in plan.steps})
    pools.sort(key=lambda pool: pool != DEFAULT_POOL)
    number = {pool: i for i, pool in enumerate(pools)}
    rows = [row for s in plan.start for row in _parts(s, number[s.pool])]
    try:
        start = np.array(rows, dtype=np.int64).reshape(-1, 9)
        steps = np.array([(*s[:4], number[s[4]]) for s in plan.steps], dtype=np.int64).reshape(-1, 5)
        recorded = np.array(plan.places, dtype=np.int64).reshape(-1, 2)
    except OverflowError:
        return None
    streams, stream = np.unique(np.concatenate([[0], start[:, _STREAM], steps[:, 3]]), return_inverse=True)
    addresses, slot = np.unique(np.concatenate([start[:, _AT], steps[:, 1]]), return_inverse=True)
    sizes = np.concatenate([start[:, _BYTES], steps[:, 2], recorded[:, 1], [plan.va_bytes]])
    at = np.concatenate([start[:, _AT], recorded[:, 0]])
    if 4 * len(pools) * len(streams) + 2 > MOST_LISTS or np.any(sizes < 0) or np.any(sizes >= MOST_BYTES):
        return None
    if np.any(at < 0) or np.any(at > MOST_ADDRESS) or not all(map(_is_sound, plan.start)):
        return None
    n = len(start)
    start[:, _PLACE] = start[:, _PLACE] * 2 * len(streams) + stream[1 : n + 1]
    start[:, _SLOT] = np.where(start[:, _STATE] & memory.USED, slot[:n], NONE)
    recorded = recorded[np.argsort(recorded[:, 1], kind="stable")]
    ranges = sorted((s.address, s.address + s.size) for s in plan.start)
    kept = np.array(ranges, dtype=np.int64).reshape(-1, 2)
    counts = (len(addresses), len(pools), len(streams))
    return Arrays(
        start=start,
        kinds=steps[:, 0].astype(np.int8),
        slots=slot[n:].astype(np.int32),
        sizes=np.ascontiguousarray(steps[:, 2]),
        places=(steps[:, 4] * 2 * len(streams) + stream[n + 1 :]).astype(np.int32),
        shape=arena.Shape(*counts, plan.va_bytes, recorded[:, ::-1].T, kept.T),
    )


def _is_sound(s: Any) -> bool:
    """Whether the blocks lie in order inside the segment, and fill it if it is not expandable."""
    at = s.address
    for address, size, _, _ in s.blocks:
        if size <= 0 or address < at or (address > at and not s.expandable):
            return False
        at = address + size
    end = s.address + s.size
    return bool(s.expandable == (s.page > 0) and (at <= end if s.expandable else at == end))


def _parts(s: Any, pool: int) -> Iterator[tuple[int, ...]]:
    """Rows of Arrays.start, with the pool in place of the place."""
    at = s.address
    for address, size, _, used in (*s.blocks, (s.address + s.size, 0, 0, False)):
        more = (pool, s.small, NONE, s.page, s.stream)
        if address > at:
            yield s.size * (at == s.address), at, address - at, *more, 0
        if size:
            state = memory.MAPPED | (memory.USED if used else 0)
            yield s.size * (address == s.address), address, size, *more, state
        at = address + size


def simulate(
    plan: Arrays,
    settings: Any,
    *,
    capacity: int | None = None,
    search_after_release: bool = False,
    order: str = "ascending",
) -> tuple[dict[str, int], Any]:
    """Replays the requests of a history under other settings; see algorithms.simulate.simulate.

    Returns:
        The figures of an Outcome by their names, and its reserved bytes after each allocation, [allocations].
    """
    m, curve = simulated(
        plan, settings, capacity=capacity, search_after_release=search_after_release, order=order
    )
    figures = {
        "peak_reserved": m[arena.PEAK_RESERVED],
        "peak_allocated": m[arena.PEAK_ALLOCATED],
        "end_reserved": m[arena.RESERVED],
        "stuck": m[arena.STUCK],
        "retries": m[arena.RETRIES],
        "ooms": m[arena.OOMS],
        "segment_operations": m[arena.ALLOCS] + m[arena.FREES] + m[arena.MAPS] + m[arena.UNMAPS],
    }
    return {name: int(figure) for name, figure in figures.items()}, curve


def simulated(
    plan: Arrays,
    settings: Any,
    *,
    capacity: int | None = None,
    search_after_release: bool = False,
    order: str = "ascending",
) -> tuple[Any, Any]:
    """(arena, reserved bytes after each allocation) at the end of the history."""
    m = arena.new_arena(settings, plan.shape, order)
    m[arena.CAPACITY] = NONE if capacity is None else min(capacity, arena.MOST)
    m[arena.SEARCH_AGAIN] = search_after_release
    curve = np.empty(np.count_nonzero(plan.kinds == ALLOC), dtype=np.int64)
    return _run(m, plan.start, plan.kinds, plan.slots, plan.sizes, plan.places, curve), curve


@njit
def _adopt(m: Any, start: Any, i: Any, left: Any) -> Any:
    """Takes a block of the start state over; the block made, which the next one of its segment follows."""
    row = start[i]
    if row[_HEAD]:
        left = NONE
        if not row[_PAGE]:
            arena.occupy(m, row[_AT], row[_HEAD])
    base = row[_AT] if left == NONE else m[left + memory.BASE]
    of = row[_PLACE] + row[_SMALL] * m[arena.STREAMS]
    b = arena.new(m, row[_AT], row[_BYTES], of, row[_STATE], base, row[_PAGE])
    blocks.link(m, left, b)
    if row[_STATE] & memory.MAPPED:
        arena.reserve(m, row[_BYTES])
    if row[_SLOT] == NONE:
        blocks.add_free(m, b)
    else:
        m[m[arena.TENANTS] + row[_SLOT]] = b
        blocks.use(m, b)
    return b


@njit
def _step(m: Any, kind: Any, slot: Any, size: Any, place: Any) -> Any:
    """Any step but an allocation."""
    tenant, ticket = m[arena.TENANTS] + slot, m[arena.TICKETS] + slot
    if kind == FREE and m[ticket] != NONE:
        if m[ticket] >= 0:
            blocks.complete(m, m[ticket])
        m[ticket] = NONE
    elif kind == FREE and m[tenant] != NONE:
        blocks.free(m, m[tenant])
        m[tenant] = NONE
    elif kind == DEFER and m[tenant] != NONE:
        blocks.defer(m, m[tenant], slot)
        m[tenant] = NONE
    elif kind == TRY:
        b = growth.malloc(m, size, place)
        if b == NONE:
            m[tenant] = NONE
        else:
            blocks.free(m, b)
    elif kind == EMPTY_CACHE:
        growth.release_cached(m)
    elif kind == FREEABLE:
        m[m[arena.FREEABLE] + place // (2 * m[arena.STREAMS])] = 1


def _compiled(stamp: int) -> Any:
    @njit(cache=True)
    def run(m: Any, start: Any, kinds: Any, slots: Any, sizes: Any, places: Any, curve: Any) -> Any:
        """The arena at the end; it may have moved. Fills `curve`."""
        p = memory.pointer(m)
        p[arena.STUCK] = stamp
        memory.open_index(p)
        left = NONE
        allocs = 0
        held = start.shape[0]
        for i in range(-held, kinds.size):
            need = memory.room_needed(p)
            if m.size - p[memory.TOP] < need:
                m = memory.moved(m, p[memory.TOP], need)
                p = memory.pointer(m)
            if i < 0:
                left = _adopt(p, start, held + i, left)
            elif kinds[i] == ALLOC:
                b = growth.malloc(p, sizes[i], places[i])
                p[p[arena.TENANTS] + slots[i]] = b
                curve[allocs] = p[arena.RESERVED]
                allocs += 1
            else:
                _step(p, kinds[i], slots[i], sizes[i], places[i])
        p[arena.STUCK] = growth.stuck(p)
        return m

    return run


# Numba keeps the compiled loop on disk and does not see changes in other files than this one: the stamp,
# a variable of the closure, makes it look again.
_SOURCES = (memory.__file__, arena.__file__, blocks.__file__, growth.__file__)
_run = _compiled(zlib.crc32(b"".join(Path(source).read_bytes() for source in _SOURCES)))
