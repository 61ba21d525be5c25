"""The ring that an engine records into: a file in shared memory, one writer, any number of readers.

Glossary: a *record* is one router call (or one step) of fixed size; a *site* is a router of the model; the
*head* is the number of records ever written, hence of the next one; a step that is *held* waits in the
process until it is written with those after it. Records that nobody read in time are overwritten: a reader
sees the gap in the numbers and counts it. Totals per site and expert lie beside the records and are never
overwritten, so counters stay exact whatever a reader missed.

The file's layout stands in `ring_file`; `live/drain.py` reads it. A writer that is killed leaves the file
behind whole. The space is taken when the file is made: a page that cannot be had later would kill the
engine. Stores of one thread become visible in their order on x86-64; on other machines a record may be read
torn in theory, which its own number shows.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
import weakref
from collections import deque
from dataclasses import asdict
from itertools import count
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.runtime import counts, ring_file
from moexray.runtime.flusher import Flusher
from moexray.runtime.guard import TALLIES
from moexray.runtime.ring_file import (
    FOLDER_VARIABLE,
    GAUGES,
    LIVE,
    RECORD,
    REQUEST,
    ROUTER,
    STEP,
    Layout,
    Site,
    ring_folder,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["FOLDER_VARIABLE", "Call", "Layout", "Ring", "Site", "ring_folder"]

RECORD_BYTES = RECORD.itemsize
MAX_BYTES = 16 << 20  # of a ring: 5 s of 58 layers x 256 experts at 50 steps a second
HOLD_NS, HOLD_CALLS = 250_000_000, 128  # steps are held so long, and so many calls at most (our choice)
MANY = 64  # pairs of a call, on average, from which on each is counted alone: quicker as measured
STALE_S = 600  # rings of dead writers that nobody drained are removed after so long (our choice)
CLOSED_S = 60  # and closed ones after so long; who reads one goes on reading it (our choice)
Call = tuple[int, int, int, Any]  # site, t0_ns, t1_ns, ids [rows, k]: an array, or a tensor on the CPU
Span = tuple[int, int]  # trace id of 128 bits, span id of 64
_Step = tuple[int, int, "int | None", int, int, "Sequence[Call]", "Span | None"]  # as `hold` takes it
_NO_IDS = np.zeros(0, np.int64)
_PACK = struct.Struct("@QqqqqQihHII")  # RECORD; native: whole words, on machines that are little endian
_CALL = struct.Struct("@Qqqq16xQII")  # the same, of a router on no stream: one word for layer, site and kind
_DONE = struct.Struct("@QQQ")  # steps, own_ns, step_ns of LIVE
_LINK = struct.Struct("@QqQQQQihHII")  # LINK, in the shape of a RECORD
_HEAD, _STEPS, _OWN, _STEP_NS, _FAILURES, _CLOSED, _BEAT, _REMEDIES, _HELD = range(len(LIVE))
_LIVE_AT = ring_file.LIVE_AT
_DONE_AT = _LIVE_AT + 8 * _STEPS
_numbers = count(time.monotonic_ns())  # a process that executes another leaves its number to it
_open: weakref.WeakSet[Ring] = weakref.WeakSet()


class Ring:
    """The writer. Threads may share it (a lock is held for the write).

    A forked child gets a ring of its own with its first record, gauge or failure.

    Args:
        sites: Routers, in the order of their numbers; empty for a ring of steps only.
        facts: Of the engine: engine, version, model, rank, device.
        folder: See `ring_folder`.
        max_bytes: Of the file.
        ids: Expert ids kept per record.
        gauges: Names of numbers set by `gauge`.

    Raises:
        UsageError: the folder is not ours, or the ring too small.
        OSError: no space.
    """

    _n: int  # records written
    _done: int  # steps
    _own_ns: int
    _told: int  # names of remedies
    _step_ns: int
    _first: int  # offset of the first slot
    _size: int  # of a slot
    _slots: int
    _experts: int
    _keep: int  # ids of a record
    _live: Any
    _tokens: Any
    _words: Any  # the file as uint64
    _totals: list[np.ndarray[Any, Any]]  # int64 [experts] of each site
    _most: int  # steps held
    _busy: bool  # recording
    _flushed_ns: int  # end of the last step in the file

    def __init__(
        self, sites: Sequence[Site], facts: Mapping[str, Any], *, folder: str | Path | None = None,
        max_bytes: int = MAX_BYTES, ids: int = 0, gauges: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.sites, self.facts, self.gauges = tuple(sites), dict(facts), tuple(gauges)[:GAUGES]
        experts = max((s.experts for s in sites), default=0)
        self.layout = Layout.within(len(self.sites), experts, ids, max_bytes)
        self._folder = folder
        self._begin()
        self._forked = self.closed = False
        self._open_file()
        _open.add(self)

    def write(
        self, site: int, step: int, t0_ns: int, t1_ns: int, rows: int = 0,
        ids: np.ndarray[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        """Records one router call at once.

        Args:
            site: Position in `sites`.
            step: Number of the forward.
            t0_ns: CLOCK_MONOTONIC at entry; of the launch where the work is asynchronous.
            t1_ns: The same at exit.
            rows: Tokens of the call.
            ids: Experts chosen, whole numbers, as many for each row. Those below 0 or past the last are not
                counted.
        """
        ids = _NO_IDS if ids is None else ids
        shape = (rows, ids.size // rows) if rows else ids.shape
        self.hold(step, 0, None, calls=[(site, t0_ns, t1_ns, ids.reshape(shape))])

    def write_counts(
        self, site: int, step: int, t0_ns: int, t1_ns: int, rows: int,
        found: np.ndarray[Any, Any], stream: int = 0, graph: int = 0,
    ) -> None:  # fmt: skip
        """As `write`, where the pairs per expert were counted elsewhere (int64 [experts])."""
        if self._forked:
            self._open_own()
        with self._lock:
            self._flush()
            number = self._n
            at = number % self._slots
            _PACK.pack_into(
                self._memory, self._first + at * self._size,
                number, step, t0_ns, t1_ns, stream, graph, self._layers[site], site, ROUTER,
                rows, int(found.sum()),
            )  # fmt: skip
            self._counts[at] = found
            self._totals[site] += found
            self._tokens[site] += rows
            self._live[_HEAD] = self._n = number + 1

    def step(
        self, step: int, t0_ns: int, t1_ns: int, rows: int = 0, own_ns: int = 0, calls: Sequence[Call] = (),
    ) -> None:  # fmt: skip
        """Records the end of a step at once, and before it its router calls; see `hold`."""
        if self._forked:
            self._open_own()
        with self._lock:
            self._held.append((step, t0_ns, t1_ns, rows, own_ns, calls, None))
            self._flush()

    def hold(
        self, step: int, t0_ns: int, t1_ns: int | None, rows: int = 0, own_ns: int = 0,
        calls: Sequence[Call] = (), span: Span | None = None,
    ) -> None:  # fmt: skip
        """Records a step and its router calls later, with others: HOLD_NS after those before, or by `flush`.

        A running model drives our code out of the caches, so that what is done first after its work costs
        many times what it costs again: that is paid once for all that is held. LIVE counts what is `held`,
        for the case that the process is killed meanwhile. Where no more steps come, a Flusher records it.

        Args:
            step: Its number.
            t0_ns: Its start.
            t1_ns: Its end; None where it raised: then it has calls, but no record of its own.
            rows: Tokens.
            own_ns: What recording it cost, as far as it was measured.
            calls: Of its routers. Nobody may change their ids any more.
            span: That it is done for.
        """
        if self._forked:
            self._open_own()
        held = self._held
        held.append((step, t0_ns, t1_ns, rows, own_ns, calls, span))
        self._live[_HELD] = len(held)
        due = t1_ns is None or t1_ns - self._flushed_ns >= HOLD_NS or len(held) >= self._most
        if due or not (self._flusher.awake or self._flusher.wake()):
            self.flush()

    def flush(self) -> None:
        """Records what is held."""
        with self._lock:
            if not self._forked:  # else nothing is
                self._flush()

    def is_busy(self) -> bool:
        """Whether a step was recorded a moment ago: the next one records what is held."""
        return time.monotonic_ns() - self._flushed_ns < HOLD_NS

    def request(self, step: int, trace_id: int, span_id: int) -> None:
        """Records a span that a step is done for, before its end: trace id of 128 bits, span id of 64."""
        self.hold(step, 0, None, span=(trace_id, span_id))

    def _flush(self) -> None:
        if self._busy:  # a signal's handler in the midst of it: what it adds is recorded the next time
            return
        self._busy, held = True, list[_Step]()
        try:
            if TALLIES:
                self._tell_remedies()
            while self._held:
                held.append(self._held.popleft())
            if held:
                self._put(held)
        except BaseException:
            self._live[_FAILURES] += len(held)
            raise
        finally:
            self._busy = False
            self._live[_HELD] = len(self._held)  # not before: it may be killed meanwhile
            if self.closed and not self._live[_CLOSED]:
                self._live[_BEAT], self._live[_CLOSED] = time.monotonic_ns(), 1
                self._map_private()
                self._live[_CLOSED] = 1

    def _put(self, held: list[_Step]) -> None:
        """Heads first, then counts, then the head of the ring: what is not whole yet, a reader can tell."""
        number, first, slots, size = self._n, self._first, self._slots, self._size
        memory, words, tokens = self._memory, self._site_words, self._tokens
        done, own, took, last = self._done, self._own_ns, self._step_ns, self._flushed_ns
        at, sites, numbers = [], [], []
        for step, t0, t1, rows, own_ns, calls, span in held:
            if span is not None:
                place = first + number % slots * size
                trace, low = span[0] >> 64, span[0] & 0xFFFF_FFFF_FFFF_FFFF
                _LINK.pack_into(memory, place, number, step, trace, low, span[1], 0, -1, -1, REQUEST, 0, 0)
                number += 1
            for site, c0, c1, ids in calls:
                try:
                    some = ids if type(ids) is np.ndarray else ids.numpy()
                except (RuntimeError, TypeError):  # it holds no numbers, or not here
                    self._live[_FAILURES] += 1
                    continue
                slot, many = number % slots, len(some)
                place = first + slot * size
                _CALL.pack_into(memory, place, number, step, c0, c1, words[site], many, some.size)
                tokens[site] += many
                at.append(slot)
                sites.append(site)
                numbers.append(some)
                number += 1
            if t1 is not None:
                slot = number % slots
                place = first + slot * size
                _PACK.pack_into(memory, place, number, step, t0, t1, 0, 0, -1, -1, STEP, rows, 0)
                at.append(slot)
                sites.append(0)
                numbers.append(_NO_IDS)
                number += 1
                done, own, took, last = done + 1, own + own_ns, took + max(t1 - t0, 0), t1
        if at and self._experts:
            self._count(at, sites, numbers)
        _DONE.pack_into(memory, _DONE_AT, done, own, took)
        self._done, self._own_ns, self._step_ns, self._flushed_ns = done, own, took, last
        if last:
            self._live[_BEAT] = last
        self._live[_HEAD] = self._n = number

    def _count(self, at: list[int], sites: list[int], numbers: list[np.ndarray[Any, Any]]) -> None:
        """Counts of calls into their slots and the totals; a step's own record is a call of no ids."""
        experts = self._experts
        if self._keep:
            for slot, some in zip(at, numbers, strict=True):
                kept = some.reshape(-1)[: self._keep]
                self._ids[slot, : len(kept)] = kept
        if sum(some.size for some in numbers) > MANY * len(numbers):
            for slot, site, some in zip(at, sites, numbers, strict=True):
                self._counts[slot] = found = counts.of_one(some, experts)
                self._totals[site] += found
        else:
            self._counts[at], by_site = counts.of_all(numbers, sites, len(self._totals), experts)
            self._totals_flat += by_site

    def _tell_remedies(self) -> None:
        """What the remedies of this process did; names first."""
        told = ring_file.put_remedies(self._memory, self._words, TALLIES[:], self._told)
        if told > self._told:
            self._live[_REMEDIES] = self._told = told

    def gauge(self, **values: float) -> None:
        """Sets gauges by name; others are left out."""
        if self._forked:
            self._open_own()
        for name, value in values.items():
            if name in self.gauges:
                self._values[self.gauges.index(name)] = value

    def failed(self) -> None:
        """Counts a call that could not be recorded."""
        if self._forked:
            self._open_own()
        self._live[_FAILURES] += 1

    def close(self) -> None:
        """Says that no more will come; the file stays for its readers, but is not held here. Safe twice."""
        with self._lock:
            self.closed = True
            if not self._forked:  # else it is still the parent's
                with contextlib.suppress(Exception):  # counted
                    self._flush()
        self._flusher.end()
        _open.discard(self)

    def __del__(self) -> None:
        """Nothing held is lost with the model that it was recorded of."""
        with contextlib.suppress(Exception):  # counted
            if self._held:
                self.flush()

    def _begin(self) -> None:
        """Also after a fork: what is held is the parent's, whose threads may have held the lock."""
        self._lock, self._forked, self._busy = threading.RLock(), True, False
        self._held: deque[_Step] = deque()
        self._flusher = Flusher(self)

    def _open_own(self) -> None:
        """In a forked child, before it writes: a file of its own, or none where there is no space."""
        with self._lock:
            if not self._forked:  # another thread was faster
                return
            try:
                self._open_file()
            except (OSError, UsageError):
                self._map_private()
            self._forked = False

    def _map_private(self) -> None:
        """Memory that nobody reads, for what still comes."""
        self._memory = mmap.mmap(-1, self.layout.size)
        self._map()

    def _open_file(self) -> None:
        folder, layout = ring_folder(self._folder, make=True), self.layout
        ring_file.sweep(folder, STALE_S, CLOSED_S)
        sites = [asdict(site) for site in self.sites]
        about = {**self.facts, "sites": sites, "gauges": self.gauges, **asdict(layout)}
        self.path, self._memory = ring_file.create(folder, next(_numbers), about, layout.size)
        self._map()
        Finalize(self, _at_exit, (weakref.ref(self),), exitpriority=0)

    def _map(self) -> None:
        layout, memory = self.layout, self._memory
        self._done = self._own_ns = self._step_ns = self._told = self._flushed_ns = 0
        self._n, self._first, self._size = 0, layout.slots_at, layout.record_bytes
        self._slots, self._experts, self._keep = layout.slots, layout.experts, layout.ids
        self._layers = [s.layer for s in self.sites]
        self._site_words = [s.layer & 0xFFFF_FFFF | n << 32 | ROUTER << 48 for n, s in enumerate(self.sites)]
        self._live = memoryview(memory)[_LIVE_AT : _LIVE_AT + 8 * len(LIVE)].cast("Q")
        self._live[_BEAT] = time.monotonic_ns()
        self._values = np.frombuffer(memory, np.float64, GAUGES, 256)
        self._values[:] = np.nan
        totals = layout.totals(memory).view(np.int64)  # as bincount counts: no cast
        self._totals, self._totals_flat = list(totals), totals.reshape(-1)
        self._words = memoryview(memory)[: layout.size // 8 * 8].cast("Q")
        self._most = max(min(HOLD_CALLS, layout.slots // 2) // (len(self.sites) + 1), 1)
        tokens: Any = layout.tokens(memory)
        self._tokens = memoryview(tokens)
        slots = layout.slots_of(memory)
        end = RECORD_BYTES + 4 * layout.experts
        self._counts = slots[:, RECORD_BYTES : end].view(np.uint32)
        self._ids = slots[:, end : end + 2 * layout.ids].view(np.int16)


def _after_fork() -> None:
    """A child would be a second writer: it opens a file of its own, but only once it writes."""
    for ring in list(_open):
        ring._begin()  # noqa: SLF001 - this module's own class


def _at_exit(of: weakref.ref[Ring]) -> None:
    """Called by multiprocessing, whose own children leave atexit out."""
    if (ring := of()) is not None:
        ring.__del__()


os.register_at_fork(after_in_child=_after_fork)
