"""A recorded allocation history of one device, as PyTorch's snapshots hold it.

Words: see algorithms/blocks.py. Addresses and sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from moexray.algorithms.blocks import DEFAULT_POOL, Pool, Settings

__all__ = ["Action", "Event", "History", "PrivatePlaces", "SegmentState"]


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
    """One entry: size is the requested size (alloc, free), the rounded one (oom) or the segment's."""

    action: Action
    address: int
    size: int
    stream: int = 0
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment with its blocks (address, size, requested size, used), in order.

    Args:
        address: Where it lies.
        size: Its bytes.
        stream: Its stream.
        small: Whether it belongs to the small pool.
        pool: Its pool.
        blocks: Of an expandable segment only mapped ones.
        expandable: In a snapshot such a segment is one mapped run; `start_state` gives the whole
            address space, whose parts without blocks are not mapped.
        page: Bytes that it maps at a time; `start_state` fills it in.
    """

    address: int
    size: int
    stream: int
    small: bool = False
    pool: Pool = DEFAULT_POOL
    blocks: tuple[tuple[int, int, int, bool], ...] = ()
    expandable: bool = False
    page: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Events of one device in order, and the segments at their end.

    Args:
        events: Oldest first; the front may be missing.
        segments: The snapshot's.
        settings: In force while it was recorded.
        va_bytes: Address space of each expandable segment: 9/8 of the device's memory; None where
            that is not known: then one segment for each pool and stream is taken to suffice.
    """

    events: tuple[Event, ...]
    segments: tuple[SegmentState, ...]
    settings: Settings = field(default_factory=Settings)
    va_bytes: int | None = None


class PrivatePlaces:
    """Where private pools lie, for histories that do not write the pool of an event."""

    def __init__(self, history: History) -> None:
        private = (s for s in history.segments if s.pool != DEFAULT_POOL)
        self._ranges = sorted((s.address, s.address + s.size, s.pool) for s in private)
        self._starts = [start for start, _, _ in self._ranges]

    def pool(self, address: int) -> Pool:
        """The private pool whose segment holds the address, else the default pool."""
        at = bisect_right(self._starts, address) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else DEFAULT_POOL

    def of(self, event: Event) -> Pool:
        """The pool that an event names, else that of its address."""
        return self.pool(event.address) if event.pool is None else event.pool
