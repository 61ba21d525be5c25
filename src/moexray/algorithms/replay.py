"""Replays a recorded allocation history: exactly (the self-check), or under other settings.

The end of a history is known (the snapshot's segments), its start is not: `start_state` walks the
events backwards to it. A block that lived at the start and died later left its true size nowhere;
its slack (see algorithms/blocks.py) is inferred from who moved in behind it.

Source: the method of DESIGN's allocator replay; see docs/decisions/020.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from moexray.algorithms.allocator import CachingAllocator
from moexray.algorithms.blocks import SMALL_SIZE, Block, Pool, Segment, Settings, is_small, round_size

__all__ = [
    "Action",
    "Check",
    "Device",
    "Event",
    "History",
    "PrivatePlaces",
    "SegmentState",
    "load",
    "replay",
    "start_state",
]


class Action(IntEnum):
    """What an entry of a history says."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    UNKNOWN = 9


class Event(NamedTuple):
    """One entry: size is the requested size (alloc, free) or the segment's (segment_*), bytes."""

    action: Action
    address: int
    size: int
    stream: int = 0
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment of a snapshot with its blocks (address, size, requested size, used), in order."""

    address: int
    size: int
    stream: int
    small: bool = False
    pool: Pool = (0, 0)
    blocks: tuple[tuple[int, int, int, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """Events of one device in order, and the segments at their end."""

    events: tuple[Event, ...]
    segments: tuple[SegmentState, ...]
    settings: Settings = field(default_factory=Settings)


@dataclass(slots=True)
class Check:
    """How far a replay agrees with the recording: (agreed, total) per kind."""

    placements: tuple[int, int] = (0, 0)
    segment_allocs: tuple[int, int] = (0, 0)
    segment_frees: tuple[int, int] = (0, 0)
    final_blocks: tuple[int, int] = (0, 0)
    ambiguous_blocks: int = 0

    @property
    def exact(self) -> bool:
        """Everything that can be compared agrees."""
        parts = (self.placements, self.segment_allocs, self.segment_frees, self.final_blocks)
        return all(agreed == total for agreed, total in parts)


class Device:
    """A device; segments get the addresses in `recorded` first, else fresh ones.

    Args:
        capacity: Bytes it can give; None is endless.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.used, self.next = capacity, 0, 1 << 48
        self.recorded: list[tuple[int, int]] = []
        self.matched = 0

    def allocate(self, size: int) -> int | None:
        """See algorithms.allocator.Driver."""
        if self.capacity is not None and self.used + size > self.capacity:
            return None
        self.used += size
        for i, (address, wanted) in enumerate(self.recorded):
            if wanted == size:
                del self.recorded[i]
                self.matched += 1
                return address
        address, self.next = self.next, self.next + size
        return address

    def release(self, address: int, size: int) -> None:
        """See algorithms.allocator.Driver."""
        del address
        self.used -= size


class PrivatePlaces:
    """Where private pools lie, for histories that do not write the pool of an event."""

    def __init__(self, history: History) -> None:
        private = (s for s in history.segments if s.pool != (0, 0))
        self._ranges = sorted((s.address, s.address + s.size, s.pool) for s in private)
        self._starts = [start for start, _, _ in self._ranges]

    def pool(self, address: int) -> Pool:
        """The private pool whose segment holds the address, else the default pool."""
        at = bisect_left(self._starts, address + 1) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else (0, 0)


def start_state(history: History) -> tuple[list[SegmentState], int]:
    """The segments before the first event, walked backwards from the end.

    Returns:
        (segments, ambiguous): blocks whose slack nothing tells count as ambiguous.
    """
    live: dict[int, int] = {}  # address -> requested size
    sizes: dict[int, int] = {}  # true block size where the end state still holds it
    segments = {s.address: s for s in history.segments}
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
            segments[e.address] = SegmentState(e.address, e.size, e.stream, pool=e.pool or (0, 0))
    segments = {a: _with_pool(s, live, history) for a, s in segments.items()}
    return _with_blocks(history, segments, live, sizes)


def _with_pool(s: SegmentState, live: dict[int, int], history: History) -> SegmentState:
    """Whether a segment that is gone at the end was of the small pool (2 MiB and small tenants)."""
    if s.blocks:
        return s
    inside = [n for a, n in live.items() if s.address <= a < s.address + s.size]
    allocs = (e for e in history.events if e.action == Action.ALLOC)
    later = (e.size for e in allocs if 0 <= e.address - s.address < s.size)
    first = inside[0] if inside else next(later, 0)
    small = s.size == 2 << 20 and is_small(round_size(first))
    return SegmentState(s.address, s.size, s.stream, small, s.pool)


def _with_blocks(
    history: History, segments: dict[int, SegmentState], live: dict[int, int], sizes: dict[int, int]
) -> tuple[list[SegmentState], int]:
    """Fills each segment with its live blocks and the gaps between them."""
    addresses = sorted(live)
    known = {a: round_size(n, history.settings) for a, n in live.items()}
    out, unknown = [], {}
    for s in sorted(segments.values(), key=lambda x: x.address):
        inside = addresses[bisect_left(addresses, s.address) : bisect_left(addresses, s.address + s.size)]
        for i, a in enumerate(inside):
            end = inside[i + 1] if i + 1 < len(inside) else s.address + s.size
            gap = end - a - known[a]
            if a in sizes:
                known[a] = sizes[a]
            elif not s.small and 0 < gap <= SMALL_SIZE:
                known[a] += gap
            elif not s.small and gap > 0:
                unknown[a + known[a]] = a
    ambiguous = _infer_slack(history, unknown, known)
    for s in sorted(segments.values(), key=lambda x: x.address):
        inside = addresses[bisect_left(addresses, s.address) : bisect_left(addresses, s.address + s.size)]
        blocks, at = [], s.address
        for a in inside:
            if a > at:
                blocks.append((at, a - at, 0, False))
            blocks.append((a, known[a], live[a], True))
            at = a + known[a]
        if at < s.address + s.size:
            blocks.append((at, s.address + s.size - at, 0, False))
        out.append(SegmentState(s.address, s.size, s.stream, s.small, s.pool, tuple(blocks)))
    return out, ambiguous


def _infer_slack(history: History, unknown: dict[int, int], known: dict[int, int]) -> int:
    """Whoever moves in within 1 MiB behind a block tells where that block ended."""
    ends = sorted(unknown)
    for e in history.events:
        if not ends:
            break
        if e.action == Action.ALLOC:
            at = bisect_left(ends, e.address + 1) - 1
            if at >= 0 and e.address - ends[at] <= SMALL_SIZE:
                known[unknown[ends[at]]] += e.address - ends[at]
                del ends[at]
        elif e.action == Action.FREE_COMPLETED:
            end = e.address + known.get(e.address, 0)
            at = bisect_left(ends, end)
            if at < len(ends) and ends[at] == end and unknown[end] == e.address:
                del ends[at]
    return len(ends)


def load(allocator: CachingAllocator, device: Device, segments: list[SegmentState]) -> dict[int, Block]:
    """Puts the start state into an allocator; its used blocks by address."""
    tenants: dict[int, Block] = {}
    for s in segments:
        segment = Segment(s.address, s.size, s.stream, s.pool, s.small)
        device.used += s.size
        parts = [(size, used) for _, size, _, used in s.blocks]
        for block in allocator.adopt(segment, parts):
            if block.used:
                tenants[block.address] = block
    return tenants


def replay(history: History) -> Check:
    """Replays the recorded settings against the recorded addresses: the self-check."""
    segments, ambiguous = start_state(history)
    device = Device()
    allocator = CachingAllocator(history.settings, device)
    tenants: dict[int, Block] = load(allocator, device, segments)
    places = PrivatePlaces(history)
    hits = placed = freed = frees = asked = 0
    for e in history.events:
        if e.action == Action.SEGMENT_ALLOC:
            device.recorded.append((e.address, e.size))
            asked += 1
        elif e.action == Action.SEGMENT_FREE:
            frees += 1
            freed += _give_back(allocator, e)
        elif e.action == Action.ALLOC:
            placed += 1
            block = allocator.malloc(e.size, e.stream, e.pool or places.pool(e.address))
            hits += block.address == e.address
            tenants[e.address] = block
        elif e.action == Action.FREE_COMPLETED and e.address in tenants:
            allocator.free(tenants.pop(e.address))
    return Check(
        placements=(hits, placed),
        segment_allocs=(device.matched, asked),
        segment_frees=(freed, frees),
        final_blocks=_compare(allocator, tenants, history.segments),
        ambiguous_blocks=ambiguous,
    )


def _give_back(allocator: CachingAllocator, e: Event) -> bool:
    """Frees a recorded segment; False where it is not a whole free segment of that size here."""
    segment = allocator.segments.get(e.address)
    if segment is None or segment.size != e.size:
        return False
    free = allocator.free_list(segment.pool, small=segment.small)
    key = (segment.stream, segment.size, segment.address)
    if key not in free.blocks:
        return False
    allocator.drop(free, free.blocks[key])
    return True


def _compare(
    allocator: CachingAllocator, tenants: dict[int, Block], segments: tuple[SegmentState, ...]
) -> tuple[int, int]:
    """Blocks (address, size, used) at the end against the snapshot's."""
    want = {(a, n, used) for s in segments for a, n, _, used in s.blocks}
    have = {(b.address, b.size, True) for b in tenants.values()}
    have |= {(b.address, b.size, False) for b in allocator.all_free()}
    return len(want & have), len(want | have)
