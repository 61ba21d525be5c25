"""A recorded history under other allocator settings: what would have happened.

The requests and frees stay as recorded, with their order and streams; addresses, segments and
failures are the simulation's own. Words: see algorithms/blocks.py and algorithms/replay.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.replay import Action, Device, History, PrivatePlaces, SegmentState, load, start_state

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Block, Pool, Settings

__all__ = ["Outcome", "Plan", "prepare", "simulate", "smallest_capacity"]

EMPTY_CACHE = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """A history made ready to be replayed many times.

    Args:
        start: Segments before the first event.
        ambiguous: Blocks at the start whose slack nothing tells.
        steps: (kind, address, size, stream, pool): kind 0 allocates, 2 frees, -1 is an
            empty_cache().
        capacity: (least, below): the device gave `least` bytes at least; a recorded retry shows
            that it could not give `below`. None where nothing shows it.
        recorded_reserved: Reserved bytes after each allocation, as recorded.
    """

    start: tuple[SegmentState, ...]
    ambiguous: int
    steps: tuple[tuple[int, int, int, int, Pool], ...]
    capacity: tuple[int, int | None]
    recorded_reserved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a history gives under some settings. Bytes and counts over the whole history."""

    peak_reserved: int
    peak_allocated: int
    end_reserved: int
    stuck: int
    retries: int
    ooms: int
    segment_operations: int
    reserved: tuple[int, ...]


def prepare(history: History) -> Plan:
    """Finds the start state, the empty_cache() calls and what is known of the capacity.

    Freed segments followed by a new one are a retry if reserved memory would have passed its
    highest mark without them, else an empty_cache(): the recording does not tell them apart, so an
    empty_cache() at the very peak counts as a retry.
    """
    start, ambiguous = start_state(history)
    places = PrivatePlaces(history)
    begin = sum(s.size for s in start)
    most = _most_reserved(history, begin)
    reserved, freed, below = begin, 0, None
    steps: list[tuple[int, int, int, int, Pool]] = []
    curve: list[int] = []
    for e in history.events:
        if e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            freed += e.size
            continue
        if freed:
            before, reserved = reserved, reserved - freed
            grows = e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
            if grows and before + e.size > most:  # the device could not give it: a retry
                below = min(before + e.size, below or before + e.size)
            else:
                steps.append((EMPTY_CACHE, 0, 0, 0, (0, 0)))
            freed = 0
        if e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += e.size
        elif e.action == Action.ALLOC:
            steps.append((0, e.address, e.size, e.stream, e.pool or places.pool(e.address)))
            curve.append(reserved)
        elif e.action == Action.FREE_COMPLETED:
            steps.append((2, e.address, e.size, e.stream, (0, 0)))
    if freed:
        steps.append((EMPTY_CACHE, 0, 0, 0, (0, 0)))
    return Plan(tuple(start), ambiguous, tuple(steps), (most, below), tuple(curve))


def _most_reserved(history: History, begin: int) -> int:
    most = reserved = begin
    for e in history.events:
        if e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += e.size
            most = max(most, reserved)
        elif e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved -= e.size
    return most


def simulate(
    plan: Plan, settings: Settings, *, capacity: int | None = None, search_after_release: bool = False
) -> Outcome:
    """Replays the requests of a history under other settings.

    Args:
        plan: The prepared history; its start state is taken over as it was.
        settings: The settings to try.
        capacity: Bytes the device can give to this process; None is endless.
        search_after_release: See CachingAllocator.

    Returns:
        Peaks, stuck bytes at the end, retries, out-of-memory errors, segment operations. A request
        that fails is left out, and so is its free.
    """
    device = Device(capacity)
    allocator = CachingAllocator(settings, device, search_after_release=search_after_release)
    tenants: dict[int, Block] = load(allocator, device, list(plan.start))
    reserved: list[int] = []
    for kind, address, size, stream, pool in plan.steps:
        if kind == 0:
            try:
                tenants[address] = allocator.malloc(size, stream, pool)
            except OutOfMemoryError:
                tenants.pop(address, None)
            reserved.append(allocator.counters.reserved)
        elif kind == EMPTY_CACHE:
            allocator.release_cached()
        elif address in tenants:
            allocator.free(tenants.pop(address))
    c = allocator.counters
    return Outcome(
        peak_reserved=c.peak_reserved,
        peak_allocated=c.peak_allocated,
        end_reserved=c.reserved,
        stuck=allocator.stuck(),
        retries=c.retries,
        ooms=c.ooms,
        segment_operations=c.device_allocs + c.device_frees + c.maps + c.unmaps,
        reserved=tuple(reserved),
    )


def smallest_capacity(plan: Plan, settings: Settings, *, step: int = 64 << 20) -> int:
    """The least capacity, to within `step` bytes, at which no request fails.

    Searched by halving between the peak of live bytes (no allocator can do with less) and the
    peak that an endless device would see.
    """
    free = simulate(plan, settings)
    start = sum(s.size for s in plan.start)
    low, high = max(free.peak_allocated, start), free.peak_reserved
    while high - low > step:
        middle = (low + high) // 2
        if simulate(plan, settings, capacity=middle).ooms:
            low = middle
        else:
            high = middle
    return high
