"""Replays a recorded allocation history with its settings against its addresses: the self-check.

Growth and releases follow the recording, so that one difference does not become many; each is compared
with what the allocator would have done. Words: see algorithms/blocks.py.

Source: the method of the allocator replay in docs/decisions/020.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from moexray.algorithms.allocator import VA_BYTES, CachingAllocator
from moexray.algorithms.blocks import (
    SMALL_SEGMENT,
    Block,
    ContradictionError,
    FreeList,
    Pool,
    Segment,
    is_small,
    link,
    round_size,
    segment_size,
)
from moexray.algorithms.device import Device
from moexray.algorithms.expandable import growth, map_range, next_step, open_segment, unmap_range, whole_pages
from moexray.algorithms.history import Action, Event, History, PrivatePlaces, SegmentState
from moexray.algorithms.start_state import Ambiguous, start_state

__all__ = [
    "Action",
    "Ambiguous",
    "Check",
    "Device",
    "Event",
    "History",
    "PrivatePlaces",
    "SegmentState",
    "load",
    "replay",
    "start_state",
    "waited",
]

GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
RELEASE = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
INSIDE = (*GROWTH, *RELEASE)  # may happen inside a request


@dataclass(frozen=True, slots=True)
class Check:
    """How far a replay agrees with the recording: (agreed, total) per kind.

    Args:
        placements: Requests that got the recorded address.
        segment_allocs: Segments and mapped ranges, of the size and at the moment as recorded.
        segment_frees: Freed segments and unmapped ranges that could be given back like that.
        final_blocks: Blocks (address, size, in use) of the snapshot, and of either side in total.
        ambiguous: Blocks of the start whose size nothing tells; where the front of a history is
            missing they are what an inexact replay may come from.
        contradiction: Why the history cannot be replayed at all; "" if it can.
    """

    placements: tuple[int, int] = (0, 0)
    segment_allocs: tuple[int, int] = (0, 0)
    segment_frees: tuple[int, int] = (0, 0)
    final_blocks: tuple[int, int] = (0, 0)
    ambiguous: tuple[Ambiguous, ...] = ()
    contradiction: str = ""

    @property
    def ambiguous_blocks(self) -> int:
        """How many blocks are ambiguous."""
        return len(self.ambiguous)

    @property
    def exact(self) -> bool:
        """Everything that can be compared agrees."""
        parts = (self.placements, self.segment_allocs, self.segment_frees, self.final_blocks)
        return not self.contradiction and all(agreed == total for agreed, total in parts)


def load(allocator: CachingAllocator, device: Device, segments: list[SegmentState]) -> dict[int, Block]:
    """Puts the start state into an allocator; its used blocks by address."""
    tenants: dict[int, Block] = {}
    for s in segments:
        segment = Segment(s.address, s.size, s.stream, s.pool, s.small, s.page)
        parts, at = [], s.address
        for address, size, requested, used in s.blocks:
            if address > at:
                parts.append((address - at, 0, False, False))
            parts.append((size, requested, used, True))
            at = address + size
        if at < s.address + s.size:
            parts.append((s.address + s.size - at, 0, False, False))
        device.keep(s.address, s.size)
        if s.expandable:
            device.used += sum(size for size, _, _, mapped in parts if mapped)
        else:
            device.occupy(s.address, s.size)
        for block in allocator.adopt(segment, parts):
            if block.used:
                tenants[block.address] = block
    return tenants


def replay(history: History) -> Check:
    """Replays the recorded settings against the recorded addresses.

    A history that contradicts itself gives a check that says so.
    """
    try:
        segments, ambiguous = start_state(history)
        follower = _follow(history, segments)
    except ContradictionError as reason:
        allocs = sum(1 for e in history.events if e.action == Action.ALLOC)
        return Check(placements=(0, allocs), contradiction=str(reason))
    return Check(
        placements=(follower.agreed[Action.ALLOC], follower.total[Action.ALLOC]),
        segment_allocs=follower.both(*GROWTH),
        segment_frees=follower.both(*RELEASE),
        final_blocks=follower.compare(history.segments),
        ambiguous=ambiguous,
    )


def waited(history: History) -> set[int]:
    """Places of frees that look ordinary, but for which the request that follows waited.

    A free of a block that another stream still uses, waited for by the very next request (a retry),
    is recorded like an ordinary one. But after an ordinary one that request would have been served.

    Raises:
        ContradictionError: the history contradicts itself.
    """
    return _follow(history, start_state(history)[0]).waited


def _follow(history: History, segments: list[SegmentState]) -> _Follower:
    follower = _Follower(history, segments)
    for at, (before, e) in enumerate(pairwise((None, *history.events))):
        if e is not None:
            follower.see(e, before, at)
    follower.flush()
    return follower


class _Follower:
    """Follows a history event by event.

    What a request does inside (frees that it completes, segments it frees and gets) stands before its
    alloc entry: it is held in `group` until that entry tells the request. The last ordinary free is held,
    too: if segments are freed after it, a request may have waited for its stream.
    """

    def __init__(self, history: History, segments: list[SegmentState]) -> None:
        self.device = Device(order="recorded")
        va = history.va_bytes or VA_BYTES
        self.allocator = CachingAllocator(history.settings, self.device, va_bytes=va)
        self.tenants = load(self.allocator, self.device, segments)
        self.places = PrivatePlaces(history)
        self.waiting: set[int] = set()
        self.group: list[Event] = []
        self.ordinary: int | None = None  # place of the ordinary free with which the group begins
        self.waited: set[int] = set()
        self.agreed = dict.fromkeys(Action, 0)
        self.total = dict.fromkeys(Action, 0)

    def both(self, *actions: Action) -> tuple[int, int]:
        """(agreed, total) of several actions."""
        return sum(self.agreed[a] for a in actions), sum(self.total[a] for a in actions)

    def see(self, e: Event, before: Event | None, at: int) -> None:
        """Takes the next event, at a place in the history; `before` is the one before it."""
        if e.action == Action.ALLOC:
            self._serve(e)
        elif e.action in INSIDE:
            self.group.append(e)
        elif e.action == Action.FREE_REQUESTED:
            self.flush()
            self.waiting.add(e.address)
        elif e.action == Action.FREE_COMPLETED:
            late = e.address in self.waiting and before != e._replace(action=Action.FREE_REQUESTED)
            self.waiting.discard(e.address)
            if not late:
                self.flush()
                self.ordinary = at
            self.group.append(e)
        elif e.action == Action.OOM:
            self._serve(e)

    def flush(self) -> None:
        """Applies what no request follows: an empty_cache()."""
        for e in self.group:
            self._apply(e, None)
        self.group.clear()
        self.ordinary = None

    def _serve(self, e: Event) -> None:
        """A request with all that happened inside it."""
        size, pool = round_size(e.size, self.allocator.settings), self.places.of(e)
        ask = _Ask(size, e.stream, pool, self.allocator.free_list(pool, small=is_small(size)))
        released = any(x.action in RELEASE for x in self.group)
        plain = self.ordinary is not None and not released and e.action == Action.ALLOC
        grown, missed = None, False
        for i, inner in enumerate(self.group):
            if grown is None and not missed and (i or not plain):
                missed = self._find(ask) is None
            grown = self._apply(inner, ask) or grown
            if i == 0 and self.ordinary is not None and missed and self._find(ask) is not None:
                self.waited.add(self.ordinary)
        self.group.clear()
        self.ordinary = None
        if e.action == Action.OOM:
            return
        if grown is None and released and missed and self.allocator.expands(pool):
            start = growth(ask.free, size, e.stream)  # enough may be free by now that nothing need be mapped
            if start is not None and start.mapped and start.size >= size and start.address == e.address:
                grown = start
        block = self._find(ask) if grown is None or grown.key not in ask.free.blocks else grown
        right = block is not None and block.address == e.address and (grown is None or missed)
        self.agreed[Action.ALLOC] += right
        self.total[Action.ALLOC] += 1
        if block is None or block.address != e.address:
            block = self._carve(ask, e.address) or block or self._somewhere(ask)
        expandable = self.allocator.expands(pool)
        self.tenants[e.address] = self.allocator.take(block, size, e.size, expandable=expandable)

    def _find(self, ask: _Ask) -> Block | None:
        expandable = self.allocator.expands(ask.pool)
        return self.allocator.find(ask.free, ask.size, ask.stream, expandable=expandable)

    def _carve(self, ask: _Ask, address: int) -> Block | None:
        """The free memory at a recorded address, so that the replay goes on as recorded."""
        for block in ask.free.blocks.values():
            end = block.address + block.size
            if block.stream == ask.stream and block.address <= address and address + ask.size <= end:
                return _cut_front(ask.free, block, address)
        return None

    def _somewhere(self, ask: _Ask) -> Block:
        """Memory that the recording does not know, for a request that it knows."""
        wanted = segment_size(ask.size, self.allocator.settings)
        address = self.device.allocate(wanted)
        if address is None:
            raise ContradictionError("a simulated device without a limit is full")
        segment = Segment(address, wanted, ask.stream, ask.pool, is_small(ask.size))
        return self.allocator.adopt(segment, [(wanted, 0, False, True)])[0]

    def _apply(self, e: Event, ask: _Ask | None) -> Block | None:
        """Does as recorded and counts whether the allocator would have; the free block that growth gave."""
        if e.action == Action.FREE_COMPLETED:
            if e.address in self.tenants:
                self.allocator.free(self.tenants.pop(e.address))
            return None
        act = {
            Action.SEGMENT_ALLOC: self._segment_alloc,
            Action.SEGMENT_FREE: self._segment_free,
            Action.SEGMENT_MAP: self._segment_map,
            Action.SEGMENT_UNMAP: self._segment_unmap,
        }[e.action]
        right, block = act(e, ask)
        self.total[e.action] += 1
        self.agreed[e.action] += right
        return block

    def _segment_alloc(self, e: Event, ask: _Ask | None) -> tuple[bool, Block | None]:
        if e.size <= 0 or not self.device.is_free(e.address, e.size):
            return False, None
        pool = ask.pool if ask else self.places.of(e)
        small = is_small(ask.size) if ask else e.size == SMALL_SEGMENT
        right = ask is not None and e.stream == ask.stream and not self.allocator.expands(pool)
        right = right and ask is not None and e.size == segment_size(ask.size, self.allocator.settings)
        self.device.occupy(e.address, e.size)
        segment = Segment(e.address, e.size, e.stream, pool, small)
        return right, self.allocator.adopt(segment, [(e.size, 0, False, True)])[0]

    def _segment_free(self, e: Event, ask: _Ask | None) -> tuple[bool, Block | None]:
        del ask
        segment = self.allocator.segments.get(e.address)
        if segment is None or segment.size != e.size or segment.expandable:
            return False, None
        block = self.allocator.list_of(segment).blocks.get((segment.stream, segment.size, segment.address))
        if block is None:
            return False, None
        self.allocator.drop(block)
        return True, None

    def _segment_map(self, e: Event, ask: _Ask | None) -> tuple[bool, Block | None]:
        if e.size <= 0 or not self.device.is_free(e.address, e.size):
            return False, None
        small = is_small(ask.size) if ask else e.size == SMALL_SEGMENT
        pool = ask.pool if ask else self.places.of(e)
        free = self.allocator.free_list(pool, small=small)
        start = growth(free, ask.size, ask.stream) if ask else None
        inside = [h for h in free.holes_of(e.stream) if h.address <= e.address < h.address + h.size]
        hole = max(inside, key=lambda h: h.segment.address, default=None)
        if hole is None:
            hole = open_segment(self.allocator, e.stream, pool, small=small, address=e.address)
            start = start or hole
        if e.address + e.size > hole.address + hole.size:
            return False, None
        right = ask is not None and start is not None and next_step(start, ask.size) == (hole, e.size)
        right = right and hole.address == e.address
        return right, map_range(self.allocator, _cut_front(free, hole, e.address), e.size)

    def _segment_unmap(self, e: Event, ask: _Ask | None) -> tuple[bool, Block | None]:
        del ask
        end = e.address + e.size
        for segment in self.allocator.segments.values():
            if not segment.expandable or segment.stream != e.stream or segment.address > e.address:
                continue
            for block in self.allocator.list_of(segment).blocks.values():
                inside = block.address <= e.address and end <= block.address + block.size
                if inside and block.segment is segment:
                    if whole_pages(block) != (e.address, end):
                        return False, None
                    unmap_range(self.allocator, block, e.address, end)
                    return True, None
        return False, None

    def compare(self, segments: tuple[SegmentState, ...]) -> tuple[int, int]:
        """Blocks (address, size, used) at the end against the snapshot's."""
        want = {(a, n, used) for s in segments for a, n, _, used in s.blocks}
        have = {(b.address, b.size, True) for b in self.tenants.values()}
        have |= {(b.address, b.size, False) for b in self.allocator.all_free()}
        return len(want & have), len(want | have)


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request: its rounded size, where it may be served."""

    size: int
    stream: int
    pool: Pool
    free: FreeList


def _cut_front(free: FreeList, block: Block, address: int) -> Block:
    """Splits a free block or hole so that it begins at an address."""
    if block.address == address:
        return block
    free.remove(block)
    front = Block(block.address, address - block.address, block.stream, block.segment, mapped=block.mapped)
    link(block.prev, front)
    link(front, block)
    block.address, block.size = address, block.size - front.size
    free.add(front)
    free.add(block)
    return block
