"""The stress generator: a workload drives an allocator until its free memory is cut up as wanted.

It is seeded and repeatable: the same spec gives the same events, byte for byte. `stop` ends it between
two actions; what was recorded until then is complete. Source of the idea: the fragmentation stress of
the incident's own test plan; fio, which it names, has no such option.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.algorithms.blocks import Settings
from moexray.core.errors import UsageError
from moexray.verify.stress.heaps import MAIN, ratio_of
from moexray.verify.stress.mixes import FOREVER, MIXES, SCALED_FOR, Request
from moexray.verify.stress.steer import Action, Aim, actions, distance, enough, preparation
from moexray.verify.stress.tape import TorchHeap

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.verify.stress.heaps import Heap, Home, Row

__all__ = ["Outcome", "Spec", "drive", "record"]

GIB, MIB = 1 << 30, 1 << 20
TOLERANCE = 0.005  # distance from the target that is good enough
CHURN = 0.97  # share of the events for the workload; the rest is for the last steering
LAST_MOVES = 400  # of the last steering
LEAST_FREE = 256  # at least this part of the live memory should be free, or its ratio means nothing
LARGEST_TEMPORARY = 4  # part of the live memory that a temporary of steering may take
MOVES = 4  # steering actions after each step
STALE = 25  # actions in a row without a gain after which steering gives up
STREAMS = (0, 7, 13, 20, 26, 33, 39, 46)  # handles, the default stream first
GRAPH_HOME: Home = (52, (0, 1))  # a capture runs on a stream of its own
GRAPH_STEPS = (2, 3)
SHARE_ELSEWHERE = 0.25  # requests that are not for the default stream
SHARE_DEFERRED = 0.2  # frees of blocks that another stream still uses
LONGEST_WAIT = 16  # requests until such a free completes
STEERED_LIFE = 24  # steps that a block lives which steering asked for
MARGIN = 16 * MIB  # what the device still has when the request fails; less than a page of 20 MiB
STEERED = ("prefix_cache", "engine/kv.py", 103)
LAST = ("prefill_workspace", "engine/loop.py", 171)


@dataclass(frozen=True, slots=True)
class Spec:
    """What to generate.

    Args:
        seed: Of all dice.
        events: Entries of the history, about.
        target: Fragmentation ratio aimed at: 1 - largest free / total free, 0 to below 1.
        live_bytes: Memory that the workload keeps alive, about.
        mix: One of MIXES.
        expandable: Expandable segments.
        streams: Streams in use, 1 to 8; with more than one some frees are deferred.
        graph_pool: A CUDA graph is captured into a private pool in steps 2 and 3.
        oom: The history ends in a request that fails.
        capacity: Bytes of the device; None is endless.
    """

    seed: int = 0
    events: int = 20_000
    target: float = 0.6
    live_bytes: int = 4 * GIB
    mix: str = "moe"
    expandable: bool = False
    streams: int = 1
    graph_pool: bool = False
    oom: bool = False
    capacity: int | None = None

    def check(self) -> None:
        """Raises UsageError for what cannot be generated."""
        if not 0 <= self.target < 1:
            raise UsageError(f"a ratio of {self.target} cannot be reached", hint="0 <= ratio < 1")
        if not 1 <= self.streams <= len(STREAMS):
            raise UsageError(f"{self.streams} streams", hint=f"1 to {len(STREAMS)}")
        if self.mix not in MIXES:
            raise UsageError(f"there is no mix {self.mix}", hint=f"one of {', '.join(MIXES)}")
        if self.events < 1 or self.live_bytes < 64 * MIB:
            raise UsageError("too few events or too little memory", hint="1 event and 64 MiB at least")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Args:
        ratio: 1 - largest free / total free at the end.
        error: ratio - target.
        events: Entries of the history.
        steps: Steps of the workload.
        failures: Requests that failed; with `oom` the last one is meant to.
        interrupted: `stop` ended it.
        free_bytes, largest_free_bytes, used_bytes: At the end.
    """

    ratio: float
    error: float
    events: int
    steps: int
    failures: int
    interrupted: bool
    free_bytes: int
    largest_free_bytes: int
    used_bytes: int


class _Workload:
    """The program under test: asks, frees, steers."""

    def __init__(self, heap: Heap, spec: Spec) -> None:
        self.heap, self.spec = heap, spec
        self.dice = random.Random(spec.seed)  # noqa: S311  # repeatable, not secret
        self.scale = spec.live_bytes / SCALED_FOR
        self.live: dict[int, int] = {}  # handle -> step in which it dies
        self.due: dict[int, list[int]] = {}
        self.keep: set[int] = set()
        self.number = self.failures = 0

    def step(self) -> None:
        """One step of the mix; its temporaries die at its end, in reverse order."""
        now, self.number = self.number, self.number + 1
        self.heap.step(now)
        capture = self.spec.graph_pool and now in GRAPH_STEPS
        self.heap.capture(on=capture)
        for request in MIXES[self.spec.mix](self.dice, now, self.scale):
            self._ask(request, GRAPH_HOME if capture else self._home(), now + request.life)
        for handle in reversed(self.due.pop(now, [])):
            if handle in self.live:
                self._free(handle, defer=not capture)
        self.heap.capture(on=False)

    def steer(self, moves: int, stop: Callable[[], bool]) -> None:
        """Takes the actions that bring the ratio closest to the target."""
        aim = Aim(self.spec.target, self.spec.live_bytes // LEAST_FREE, cached=not self.spec.oom)
        useless: set[tuple[int, Home]] = set()  # requests that another hole served than was thought
        best, stale = 9.0, 0
        last: Action | None = None
        for _ in range(moves):
            rows = self.heap.rows(released=self.spec.oom)
            off = distance(rows, aim)
            if last is not None and last.handle is None and off > last.off:
                useless.add((last.size, last.home))
            stale = 0 if off < best - 1e-9 else stale + 1
            best = min(best, off)
            if off <= TOLERANCE or stale >= STALE or stop():
                return
            last = self._choose(rows, aim, off, useless)
            self._do(last)

    def _choose(self, rows: list[Row], aim: Aim, off: float, useless: set[tuple[int, Home]]) -> Action:
        if enough(rows, aim):
            found = actions(rows, self.heap.rows(released=True), aim, self.dice, self.keep)
            usable = (a for a in found if a.handle is not None or (a.size, a.home) not in useless)
            action = min(usable, key=lambda a: a.off, default=None)
            if action is not None and action.off < off:
                return action
        return preparation(rows, aim, self.spec.live_bytes // LARGEST_TEMPORARY)

    def _do(self, action: Action) -> None:
        if action.handle is not None:
            self._free(action.handle, defer=False)
        elif not action.size:
            self.heap.release()
        else:
            if action.piece:
                self.heap.release()  # so that no other cached segment serves the piece
            handle = self._ask(Request(action.size, 0, STEERED), action.home, self._later())
            self._pin(action.seal, action.home)
            if handle is not None and action.brief and handle in self.live:  # the seal may have preempted it
                self._free(handle, defer=False)
            self._pin(action.piece, action.home)

    def _pin(self, size: int, home: Home) -> None:
        """Asks for a block that steering does not free; none of 0 bytes."""
        handle = self._ask(Request(size, 0, STEERED), home, self._later()) if size else None
        if handle is not None:
            self.keep.add(handle)

    def _later(self) -> int:
        """A step in which something steered dies."""
        return self.number + self.dice.randrange(1, STEERED_LIFE)

    def fail(self, heap: TorchHeap) -> None:
        """Asks for a little more than the largest hole and than what the device has left."""
        holes = [n for row in heap.rows() for n, handle in row.spans if handle is None]
        heap.run_dry(MARGIN)
        size = max([MARGIN, *holes]) + 2 * MIB
        self._ask(Request(size, 0, LAST), MAIN, self.number)

    def _home(self) -> Home:
        if self.spec.streams > 1 and self.dice.random() < SHARE_ELSEWHERE:
            return self.dice.choice(STREAMS[1 : self.spec.streams]), MAIN[1]
        return MAIN

    def _ask(self, request: Request, home: Home, end: int) -> int | None:
        handle = self.heap.allocate(request, home)
        if handle is None:
            self.failures += 1
            if request.site is not LAST:
                self._preempt()
            return None
        self.live[handle] = end
        self.due.setdefault(end, []).append(handle)
        if end >= FOREVER:
            self.keep.add(handle)
        return handle

    def _preempt(self) -> None:
        """Frees what would live longest, as an engine preempts a sequence."""
        others = (h for h in self.live if h not in self.keep)
        victim = max(others, key=self.live.__getitem__, default=None)
        if victim is not None:
            self._free(victim, defer=False)

    def _free(self, handle: int, *, defer: bool) -> None:
        del self.live[handle]
        self.keep.discard(handle)
        wait = 0
        if defer and self.spec.streams > 1 and self.dice.random() < SHARE_DEFERRED:
            wait = self.dice.randrange(1, LONGEST_WAIT)
        self.heap.free(handle, wait)


def drive(heap: Heap, spec: Spec, stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Drives any allocator to the target.

    Args:
        heap: The allocator; see heaps.
        spec: What to do.
        stop: Asked between two actions; True ends the run.

    Raises:
        UsageError: the spec cannot be generated.
    """
    spec.check()
    work = _Workload(heap, spec)
    while heap.entries() < spec.events * CHURN and not stop():
        work.step()
        work.steer(MOVES, stop)
    if spec.oom:
        heap.release()  # the failing request would: deferred frees complete
    work.steer(LAST_MOVES, stop)
    if spec.oom and isinstance(heap, TorchHeap):
        work.fail(heap)
    spans = [span for row in heap.rows() for span in row.spans]
    free = [n for n, handle in spans if handle is None]
    ratio = ratio_of(heap.rows())
    return Outcome(
        ratio=ratio,
        error=ratio - spec.target,
        events=heap.entries(),
        steps=work.number,
        failures=work.failures,
        interrupted=stop(),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        used_bytes=sum(n for n, handle in spans if handle is not None),
    )


def record(spec: Spec, stop: Callable[[], bool] = lambda: False) -> tuple[TorchHeap, Outcome]:
    """Drives PyTorch's caching allocator; `snapshot()` of the heap is the file's content.

    Raises:
        UsageError: the spec cannot be generated.
    """
    heap = TorchHeap(Settings(expandable=spec.expandable), spec.capacity)
    return heap, drive(heap, spec, stop)
