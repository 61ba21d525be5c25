"""A recorded history under other allocator settings: what would have happened.

The requests and frees stay as recorded, with their order, streams and delays; addresses, segments and
failures are the simulation's own. Words: see algorithms/blocks.py and algorithms/replay.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from moexray.algorithms.allocator import VA_BYTES, CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import DEFAULT_POOL, PoolRules, round_size, segment_size
from moexray.algorithms.device import Device, Order
from moexray.algorithms.history import Action, PrivatePlaces
from moexray.algorithms.replay import load, waited
from moexray.algorithms.start_state import start_state

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Block, Pool, Settings
    from moexray.algorithms.history import Event, History, SegmentState

__all__ = ["Outcome", "Plan", "prepare", "simulate"]

# Kinds of steps.
ALLOC = 0
DEFER = 1  # a free that other streams hold up
FREE = 2  # a free, or the end of a deferred one
TRY = 3  # a request that failed when it was recorded: what it gets, it gives back at once
EMPTY_CACHE = -1
FREEABLE = -2  # nobody uses a private pool any more

Step = tuple[int, int, int, int, "Pool"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A history made ready to be replayed many times.

    Args:
        start: Segments before the first event.
        ambiguous: How many blocks at the start have a size that nothing tells; Check lists them.
        steps: (kind, address, size, stream, pool): 0 allocates, 1 begins a deferred free, 2 frees,
            3 tries a request that failed in the recording, -1 is an empty_cache(), -2 says that a
            private pool may be given back.
        capacity: (least, below): the device gave `least` bytes at least; a recorded retry or failure
            shows that it could not give `below`. None where nothing shows it.
        recorded_reserved: Reserved bytes after each allocation, as recorded.
        places: (address, size) of the recorded segments, in order.
        va_bytes: Address space of an expandable segment.
    """

    start: tuple[SegmentState, ...]
    ambiguous: int
    steps: tuple[Step, ...]
    capacity: tuple[int, int | None]
    recorded_reserved: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()
    va_bytes: int = VA_BYTES


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
    empty_cache() at the very peak counts as a retry. Before a failed request they are its retry.

    Raises:
        ContradictionError: the history contradicts itself (a ValueError).
    """
    start, ambiguous = start_state(history)
    maker = _Maker(history, _reserved(start))
    for at, (e, after) in enumerate(pairwise((*history.events, None))):
        if e is not None:
            maker.see(e, after, at)
    maker.settle()
    return Plan(
        tuple(start), len(ambiguous), tuple(maker.steps), (maker.most, maker.below), tuple(maker.curve),
        tuple((e.address, e.size) for e in history.events if e.action == Action.SEGMENT_ALLOC),
        history.va_bytes or VA_BYTES,
    )  # fmt: skip


def _reserved(start: list[SegmentState]) -> int:
    """Bytes of segments and mapped pages."""
    return sum(sum(b[1] for b in s.blocks) if s.expandable else s.size for s in start)


class _Maker:
    """Turns events into steps.

    What stands before a request may belong to it, and is held until it is seen: frees in `late` (with
    `ordinary`, the place of the first if that is not late), segments in `frees` (bytes given back) and
    `grown` (bytes got before and after that).
    """

    def __init__(self, history: History, begin: int) -> None:
        self.settings, self.places = history.settings, PrivatePlaces(history)
        self.most = _most_reserved(history, begin)
        self.below: int | None = None
        self.steps: list[Step] = []
        self.curve: list[int] = []
        self.late: list[Step] = []
        self.reserved, self.frees, self.grown = begin, 0, [0, 0]
        self.ordinary: int | None = None
        self.waited = waited(history) if _has_late_frees(history) else set[int]()
        self.deferred: set[int] = set()
        self.freeable: set[Pool] = set()

    def see(self, e: Event, after: Event | None, at: int) -> None:
        """Takes the next event, at a place in the history; `after` is the one that follows."""
        pool = self.places.of(e)
        if e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            if pool != DEFAULT_POOL and pool not in self.freeable:
                self.freeable.add(pool)
                self.steps.append((FREEABLE, 0, 0, 0, pool))
            self.frees += e.size
        elif e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            self.grown[self.frees > 0] += e.size
        elif e.action in (Action.ALLOC, Action.OOM):
            self._request(e, pool)
        elif e.action == Action.FREE_REQUESTED:
            self.settle()
            if after != e._replace(action=Action.FREE_COMPLETED):
                self.deferred.add(e.address)
                self.steps.append((DEFER, e.address, e.size, e.stream, DEFAULT_POOL))
        elif e.action == Action.FREE_COMPLETED:
            step = (FREE, e.address, e.size, e.stream, DEFAULT_POOL)
            if e.address in self.deferred:
                self.deferred.discard(e.address)
                self.late.append(step)
            else:
                self.settle()
                self.late.append(step)
                self.ordinary = at

    def settle(self) -> None:
        """Writes what was held: segments given back are an empty_cache()."""
        self.steps += self.late
        if self.frees:
            self.steps.append((EMPTY_CACHE, 0, 0, 0, DEFAULT_POOL))
        self._forget()

    def _forget(self) -> None:
        self.reserved += sum(self.grown) - self.frees
        self.late, self.frees, self.grown, self.ordinary = [], 0, [0, 0], None

    def _request(self, e: Event, pool: Pool) -> None:
        settings, failed = self.settings, e.action == Action.OOM
        before = self.reserved + self.grown[0]
        step = (TRY if failed else ALLOC, e.address, e.size, e.stream, pool)
        page = settings.large_segment if settings.expandable else 1
        wanted = -(-segment_size(round_size(e.size, settings), settings) // page) * page
        needed = max(self.grown[1], wanted) if settings.expandable else self.grown[1]
        passes = bool(self.grown[1]) and before + needed > self.most
        collects = bool(settings.gc_threshold) and settings.limit is not None and bool(self.grown[1])
        if failed or (not collects and (passes or (self.grown[0] and self.frees))):  # the device refused
            refused = (before + self.grown[1] - self.frees if failed else before) + wanted
            self.below = min(refused, self.below or refused)
        elif not collects:
            self.settle()
        # A retry was refused before it waited for other streams; what garbage collection and the
        # release of oversize blocks give back, they give back without waiting.
        waits = settings.max_split is None and not collects
        if self.ordinary in self.waited and waits:
            self.steps.append((DEFER, *self.late[0][1:]))
        elif self.ordinary is not None:
            self.steps.append(self.late.pop(0))
        self.steps += [step, *self.late] if waits else [*self.late, step]
        self._forget()
        if not failed:
            self.curve.append(self.reserved)


def _has_late_frees(history: History) -> bool:
    """Whether other streams ever held up a free; if not, no request waited for one."""
    pairs = pairwise((*history.events, None))
    return any(
        e is not None
        and e.action == Action.FREE_REQUESTED
        and after != e._replace(action=Action.FREE_COMPLETED)
        for e, after in pairs
    )


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
    plan: Plan,
    settings: Settings,
    *,
    capacity: int | None = None,
    search_after_release: bool = False,
    order: Order = "ascending",
) -> Outcome:
    """Replays the requests of a history under other settings.

    Args:
        plan: The prepared history; its start state is taken over as it was.
        settings: The settings to try.
        capacity: Bytes the device can give to this process; None is endless.
        search_after_release: See CachingAllocator.
        order: In which order the device chooses addresses; see Device.

    Returns:
        Peaks, stuck bytes at the end, retries, out-of-memory errors, segment operations. A request
        that fails is left out, and so is its free.
    """
    device, space = Device(capacity, order=order, places=plan.places), plan.va_bytes
    allocator = CachingAllocator(settings, device, va_bytes=space, search_after_release=search_after_release)
    tenants: dict[int, Block] = load(allocator, device, list(plan.start))
    tickets: dict[int, int] = {}
    reserved: list[int] = []
    for kind, address, size, stream, pool in plan.steps:
        if kind in (ALLOC, TRY):
            try:
                block = allocator.malloc(size, stream, pool)
                if kind == ALLOC:
                    tenants[address] = block
                else:
                    allocator.free(block)
            except OutOfMemoryError:
                tenants.pop(address, None)
            if kind == ALLOC:
                reserved.append(allocator.counters.reserved)
        elif kind == DEFER and address in tenants:
            tickets[address] = allocator.defer(tenants.pop(address))
        elif kind == FREE and address in tickets:
            allocator.complete(tickets.pop(address))
        elif kind == FREE and address in tenants:
            allocator.free(tenants.pop(address))
        elif kind == EMPTY_CACHE:
            allocator.release_cached()
        elif kind == FREEABLE:
            allocator.rules[pool] = PoolRules(freeable=True)
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

