"""One recorded stream of requests under every placement policy: space, holes, waste, failures, speed.

All start empty: what lived before the first event is asked for first, in the order of addresses. The
policies of algorithms/policies place everything in one space and know neither streams nor pools;
PyTorch's allocator takes segments and keeps both apart. Speed is CPU time of the plain Python
statement of each policy: good for comparing them, no figure of a compiled allocator.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Protocol

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import MIN_BLOCK, Pool
from moexray.algorithms.policies import POLICIES, Scope
from moexray.algorithms.policies.scope import CHUNK
from moexray.algorithms.replay import Device
from moexray.algorithms.simulate import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.algorithms.blocks import Block, Settings
    from moexray.whatif.recordings import Recording

__all__ = ["EMPTY_CACHE", "SCOPE_END", "Stream", "Trial", "compare", "names", "stream_of"]

EMPTY_CACHE, SCOPE_END = -1, -2
PYTORCH, EXPANDABLE = "pytorch", "pytorch-expandable"
SCOPES = (20, 100, 400)  # scopes that a stream is cut into, tried in turn; the best is reported
SHORTEST_SCOPE = 32  # steps
TIMED_NS = 50_000_000  # CPU time that a policy is run for at least, 0.05 s: shorter is noise
MOST_RUNS = 9


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests and frees, all addresses forgotten.

    Args:
        steps: (id, size): size > 0 asks for bytes, 0 frees; id EMPTY_CACHE is an empty_cache().
        homes: (stream, pool) of each id, from 0 on.
        settings: PyTorch's settings as recorded; expandable segments are tried both ways.
        live_peak: Most bytes asked for and not yet freed: no policy can do with less.
        recorded_peak: Most bytes that were reserved in the recording; None where it shows none.
    """

    steps: tuple[tuple[int, int], ...]
    homes: tuple[tuple[int, Pool], ...]
    settings: Settings
    live_peak: int
    recorded_peak: int | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What a policy makes of a stream. Bytes, shares and counts.

    "At the peak" is the moment of most live bytes after the high water was reached.

    Args:
        name: The policy.
        peak: High water of the address space; for PyTorch most reserved bytes.
        ratio_at_peak, ratio_at_end: 1 - largest free / free, at the peak and at the end.
        live_at_peak: Bytes asked for and alive at the peak.
        waste_at_peak: Given minus asked bytes of the live blocks at the peak.
        waste_share: Given minus asked over asked, of all requests served.
        failures: Requests that found no room within the capacity; they and their frees are left out.
        failed_bytes: What those asked for.
        fallbacks: Requests that the scope arena left to its first-fit space; None for the others.
        cpu_s: CPU time of one run over the stream, median of several.
        events: Requests and frees.
        served_bytes: Bytes asked for and served.
    """

    name: str
    peak: int
    ratio_at_peak: float
    ratio_at_end: float
    live_at_peak: int
    waste_at_peak: int
    waste_share: float
    failures: int
    failed_bytes: int
    fallbacks: int | None
    cpu_s: float
    events: int
    served_bytes: int

    @property
    def events_per_s(self) -> float:
        """Requests and frees per second of CPU time."""
        return self.events / self.cpu_s if self.cpu_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Asked bytes served per second of CPU time."""
        return self.served_bytes / self.cpu_s if self.cpu_s else 0.0


class _Allocator(Protocol):
    """What the comparison asks of a policy."""

    used: dict[int, int]
    given: int

    @property
    def high_water(self) -> int: ...

    def allocate(self, size: int, alignment: int = 1) -> int | None: ...

    def free(self, offset: int) -> None: ...

    def fragmentation(self) -> float: ...


class _Caching:
    """PyTorch's caching allocator with the face of a policy; `home` tells where the next request lives."""

    def __init__(self, settings: Settings, capacity: int | None) -> None:
        self.inner = CachingAllocator(settings, Device(capacity))
        self.home: tuple[int, Pool] = (0, (0, 0))
        self.used: dict[int, int] = {}
        self._blocks: dict[int, Block] = {}

    @property
    def given(self) -> int:
        return self.inner.counters.allocated

    @given.setter
    def given(self, value: int) -> None:
        raise AttributeError(value)

    @property
    def high_water(self) -> int:
        return self.inner.counters.peak_reserved

    def allocate(self, size: int, alignment: int = 1) -> int | None:
        del alignment  # its blocks are multiples of 512 bytes
        try:
            block = self.inner.malloc(size, *self.home)
        except OutOfMemoryError:
            return None
        self._blocks[block.address] = block
        self.used[block.address] = block.size
        return block.address

    def free(self, offset: int) -> None:
        del self.used[offset]
        self.inner.free(self._blocks.pop(offset))

    def fragmentation(self) -> float:
        sizes = [b.size for b in self.inner.all_free()]
        return 1 - max(sizes) / sum(sizes) if sizes else 0.0


def names() -> list[str]:
    """The policies that can be compared."""
    return [*POLICIES, PYTORCH, EXPANDABLE]


def stream_of(recording: Recording, most: int | None = None) -> Stream:
    """The requests of a recording.

    Args:
        recording: From whatif/recordings.
        most: Steps that are used at most, from the start.
    """
    plan = prepare(recording.history)
    steps: list[tuple[int, int]] = []
    homes: list[tuple[int, Pool]] = []
    live: dict[int, int] = {}  # address -> id

    def ask(address: int, size: int, stream: int, pool: Pool) -> None:
        if address in live:  # its free is missing
            steps.append((live.pop(address), 0))
        live[address] = len(homes)
        steps.append((len(homes), max(size, 1)))
        homes.append((stream, pool))

    for segment in plan.start:
        for address, size, requested, used in segment.blocks:
            if used:
                ask(address, requested or size, segment.stream, segment.pool)
    for kind, address, size, stream, pool in plan.steps:
        if kind in (0, 3):  # 3: a request that failed when recorded; nobody held it
            ask(address, size, stream, pool)
        if kind in (2, 3) and address in live:
            steps.append((live.pop(address), 0))
        if kind == EMPTY_CACHE:
            steps.append((EMPTY_CACHE, 0))
    mapped = (sum(b[1] for b in s.blocks) if s.expandable else s.size for s in plan.start)
    recorded = max([sum(mapped), *plan.recorded_reserved], default=0)
    chosen = tuple(steps[:most])
    return Stream(chosen, tuple(homes), recording.history.settings, _live_peak(chosen), recorded or None)


def _live_peak(steps: tuple[tuple[int, int], ...]) -> int:
    sizes: dict[int, int] = {}
    now = peak = 0
    for ident, size in steps:
        if size:
            sizes[ident] = size
            now += size
            peak = max(peak, now)
        else:
            now -= sizes.pop(ident, 0)
    return peak


def compare(stream: Stream, capacity: int | None = None, only: tuple[str, ...] = ()) -> list[Trial]:
    """Runs the stream under each policy.

    Args:
        stream: The requests.
        capacity: Bytes that a policy may use; None is endless, nothing fails.
        only: Names of the policies; all where empty.

    Returns:
        Trials: fewest failures first, then the smallest peak.
    """
    trials = []
    for name in only or names():
        if name == Scope.name:
            cuts = [_scoped(stream, count) for count in SCOPES]
            made = [_trial(name, cut, capacity) for cut in cuts]
            trials.append(min(made, key=lambda t: (t.failures, t.peak)))
        else:
            trials.append(_trial(name, stream, capacity))
    return sorted(trials, key=lambda t: (t.failures, t.peak))


def _scoped(stream: Stream, count: int) -> Stream:
    """Ends a scope where the fewest blocks are alive, once in each of `count` parts of the stream."""
    length = max(len(stream.steps) // count, SHORTEST_SCOPE)
    alive, curve = 0, []
    for ident, size in stream.steps:
        alive += 0 if ident < 0 else 1 if size else -1
        curve.append(alive)
    starts = range(0, len(curve), length)
    ends = {min(range(s, min(s + length, len(curve))), key=curve.__getitem__) for s in starts}
    steps: list[tuple[int, int]] = []
    for at, step in enumerate(stream.steps):
        steps.append(step)
        if at in ends:
            steps.append((SCOPE_END, 0))
    return Stream(tuple(steps), stream.homes, stream.settings, stream.live_peak, stream.recorded_peak)


def _make(name: str, stream: Stream, capacity: int | None) -> _Allocator:
    if name in (PYTORCH, EXPANDABLE):
        return _Caching(replace(stream.settings, expandable=name == EXPANDABLE), capacity)
    if name == Scope.name:
        return Scope(capacity, MIN_BLOCK, chunk=_chunk(stream.live_peak))
    return POLICIES[name](capacity, MIN_BLOCK)


def _chunk(live_peak: int) -> int:
    """A chunk of the scope arena that is small beside what lives, bytes."""
    return min(max(1 << max(live_peak // 16, 1).bit_length(), MIN_BLOCK), CHUNK)


def _trial(name: str, stream: Stream, capacity: int | None) -> Trial:
    times: list[int] = []
    while sum(times) < TIMED_NS and len(times) < MOST_RUNS:
        policy = _make(name, stream, capacity)
        begin = time.process_time_ns()
        _drive(policy, stream)
        times.append(time.process_time_ns() - begin)
    peak = policy.high_water
    policy = _make(name, stream, capacity)
    watch = _Watch(policy, stream, peak)
    _drive(policy, stream, watch.see)
    return Trial(
        name=name,
        peak=peak,
        ratio_at_peak=watch.ratio,
        ratio_at_end=policy.fragmentation(),
        live_at_peak=watch.live_at_peak,
        waste_at_peak=watch.waste,
        waste_share=watch.given / watch.asked - 1 if watch.asked else 0.0,
        failures=watch.failures,
        failed_bytes=watch.failed_bytes,
        fallbacks=policy.fallbacks if isinstance(policy, Scope) else None,
        cpu_s=median(times) / 1e9,
        events=sum(ident >= 0 for ident, _ in stream.steps),
        served_bytes=watch.asked,
    )


class _Watch:
    """Follows a run: what was asked and given, and the state when most was alive at the peak."""

    def __init__(self, policy: _Allocator, stream: Stream, peak: int) -> None:
        self.policy, self.stream, self.peak = policy, stream, peak
        self.live: dict[int, int] = {}  # id -> asked bytes
        self.now = self.asked = self.given = self.failures = self.failed_bytes = 0
        self.live_at_peak = self.waste = 0
        self.ratio = 0.0

    def see(self, ident: int, size: int, offset: int | None) -> None:
        """After a step: a request (size > 0) with its offset, None if it failed; or a free."""
        if not size:
            self.now -= self.live.pop(ident, 0)
            return
        if offset is None:
            self.failures += 1
            self.failed_bytes += size
            return
        self.live[ident] = size
        self.now += size
        self.asked += size
        self.given += self.policy.used[offset]
        if self.now > self.live_at_peak and self.policy.high_water == self.peak:
            self.ratio = self.policy.fragmentation()
            self.live_at_peak, self.waste = self.now, self.policy.given - self.now


def _drive(
    policy: _Allocator, stream: Stream, see: Callable[[int, int, int | None], None] | None = None
) -> None:
    """Runs a stream; a request that fails is left out, and so is its free."""
    caching = policy if isinstance(policy, _Caching) else None
    scope = policy if isinstance(policy, Scope) else None
    places: dict[int, int] = {}
    allocate, free, homes = policy.allocate, policy.free, stream.homes
    for ident, size in stream.steps:
        offset = None
        if size:
            if caching is not None:
                caching.home = homes[ident]
            offset = allocate(size, MIN_BLOCK)
            if offset is not None:
                places[ident] = offset
        elif ident >= 0:
            if ident in places:
                free(places.pop(ident))
        elif ident == EMPTY_CACHE and caching is not None:
            caching.inner.release_cached()
        elif ident == SCOPE_END and scope is not None:
            scope.end_scope()
        if see is not None and ident >= 0:
            see(ident, size, offset)
