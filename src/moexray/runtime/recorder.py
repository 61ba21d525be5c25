"""The ring that an engine records into: a file in shared memory, one writer, any number of readers.

Glossary: a *record* is one router call (or one step) of fixed size; a *site* is a router of the model; the
*head* is the number of records ever written, hence of the next one. Records that nobody read in time are
overwritten: a reader sees the gap in the numbers and counts it. Totals per site and expert lie beside the
records and are never overwritten, so counters stay exact whatever a reader missed.

The file's layout stands in `ring_file`; `live/drain.py` reads it. A writer that is killed leaves the file
behind whole. The space is taken when the file is made: a page that cannot be had later would kill the
engine. Stores of one thread become visible in their order on x86-64; on other machines a record may be read
torn in theory, which its own number shows.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import struct
import threading
import time
import weakref
from collections import Counter
from dataclasses import asdict
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.runtime import ring_file
from moexray.runtime.guard import TALLIES
from moexray.runtime.ring_file import (
    DESCRIPTION,
    FOLDER_VARIABLE,
    GAUGES,
    LIVE,
    MAGIC,
    RECORD,
    REQUEST,
    ROUTER,
    SCHEMA,
    STEP,
    TOTALS_AT,
    Layout,
    Site,
    is_running,
    ring_folder,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "FOLDER_VARIABLE",
    "LIVE",
    "RECORD",
    "ROUTER",
    "SCHEMA",
    "STEP",
    "Call",
    "Layout",
    "Ring",
    "Site",
    "is_running",
    "ring_folder",
]

RECORD_BYTES = RECORD.itemsize
MAX_BYTES = 16 << 20  # of a ring: 5 s of 58 layers x 256 experts at 50 steps a second
MANY = 8  # rows of a call from which on experts come again
STALE_S = 600  # rings of dead writers that nobody drained are removed after so long (our choice)
CLOSED_S = 60  # and closed ones after so long; who reads one goes on reading it (our choice)
Call = tuple[int, int, int, "np.ndarray[Any, Any] | list[list[int]]"]  # site, t0_ns, t1_ns, ids [rows, k]

_PACK = struct.Struct("@QqqqqQihHII")  # RECORD; native: whole words, on machines that are little endian
_DONE = struct.Struct("@QQQ")  # steps, own_ns, step_ns of LIVE
_LINK = struct.Struct("@QqQQQQihHII")  # LINK, in the shape of a RECORD
_HEAD, _STEPS, _OWN, _STEP_NS, _FAILURES, _CLOSED, _BEAT, _REMEDIES = range(len(LIVE))
_LIVE_AT = ring_file.LIVE_AT
_DONE_AT = _LIVE_AT + 8 * _STEPS
_numbers = count()
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
    _layers: list[int]
    _live: Any
    _tokens: Any
    _words: Any  # the file, for Python: totals and tokens begin at these words
    _totals_at: int
    _tokens_at: int
    _totals: list[np.ndarray[Any, Any]]  # by site, for numpy
    _counts: np.ndarray[Any, Any]
    _ids: np.ndarray[Any, Any]
    _zeros: np.ndarray[Any, Any]

    def __init__(
        self, sites: Sequence[Site], facts: Mapping[str, Any], *, folder: str | Path | None = None,
        max_bytes: int = MAX_BYTES, ids: int = 0, gauges: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.sites, self.facts, self.gauges = tuple(sites), dict(facts), tuple(gauges)[:GAUGES]
        experts = max((s.experts for s in sites), default=0)
        self.layout = Layout.within(len(self.sites), experts, ids, max_bytes)
        self._folder = folder
        self._lock, self._forked = threading.Lock(), False
        self._open_file()
        _open.add(self)

    def write(
        self, site: int, step: int, t0_ns: int, t1_ns: int, rows: int = 0,
        ids: np.ndarray[Any, Any] | None = None, stream: int = 0, graph: int = 0,
    ) -> None:  # fmt: skip
        """Records one router call.

        Args:
            site: Position in `sites`.
            step: Number of the forward.
            t0_ns: CLOCK_MONOTONIC at entry; of the launch where the work is asynchronous.
            t1_ns: The same at exit.
            rows: Tokens of the call.
            ids: Whole numbers of any shape: experts chosen. Those below 0 or past the last are not counted.
            stream: Device stream, 0 the default one.
            graph: Id of the device graph, 0 none.
        """
        with self._lock:
            if self._forked:
                self._open_own()
            self._put(site, step, t0_ns, t1_ns, rows, ids, stream, graph)

    def write_counts(
        self, site: int, step: int, t0_ns: int, t1_ns: int, rows: int,
        counts: np.ndarray[Any, Any], stream: int = 0, graph: int = 0,
    ) -> None:  # fmt: skip
        """As `write`, where the pairs per expert were counted elsewhere (int64 [experts])."""
        with self._lock:
            if self._forked:
                self._open_own()
            pairs = int(counts.sum())
            self._put_counts(site, step, (t0_ns, t1_ns), rows, pairs, counts, (stream, graph))

    def _put(
        self, site: int, step: int, t0: int, t1: int, rows: int, ids: Any, stream: int = 0, graph: int = 0,
    ) -> None:  # fmt: skip
        counts, pairs = self._zeros, 0
        if ids is not None:
            ids = ids.reshape(-1)
            counts, pairs = _counts(ids, self._experts), ids.size
        self._put_counts(site, step, (t0, t1), rows, pairs, counts, (stream, graph), ids)

    def _put_counts(
        self, site: int, step: int, times: tuple[int, int], rows: int, pairs: int,
        counts: np.ndarray[Any, Any], where: tuple[int, int], ids: np.ndarray[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        number = self._n
        at = number % self._slots
        _PACK.pack_into(
            self._memory, self._first + at * self._size,
            number, step, *times, *where, self._layers[site], site, ROUTER, rows, pairs,
        )  # fmt: skip
        self._counts[at] = counts
        total = self._totals[site]
        total += counts
        self._tokens[site] += rows
        if self._keep and ids is not None:
            self._ids[at, : min(pairs, self._keep)] = ids[: self._keep]
        self._live[_HEAD] = self._n = number + 1

    def step(
        self, step: int, t0_ns: int, t1_ns: int, rows: int = 0, own_ns: int = 0, calls: Sequence[Call] = (),
    ) -> None:  # fmt: skip
        """Records the end of a step, and before it router calls of that step that were held back.

        Args:
            step: Its number.
            t0_ns: Its start.
            t1_ns: Its end.
            rows: Tokens.
            own_ns: What recording it cost, as far as it was measured.
            calls: Counted together: in a running model that costs a fraction of one `write` each, whose code
                the model's own work has driven out of the caches. Their ids are all lists, which are counted
                without numpy, or all arrays.
        """
        with self._lock:
            if self._forked:
                self._open_own()
            if calls:
                if type(calls[0][3]) is list:
                    self._put_few(step, calls)
                else:
                    for site, t0, t1, ids in calls:
                        self._put(site, step, t0, t1, len(ids), ids)
            number, live, memory, blank = self._n, self._live, self._memory, self._blank
            place = self._first + number % self._slots * self._size
            _PACK.pack_into(memory, place, number, step, t0_ns, t1_ns, 0, 0, -1, -1, STEP, rows, 0)
            memory[place + RECORD_BYTES : place + RECORD_BYTES + len(blank)] = blank
            live[_HEAD] = self._n = number + 1
            self._done += 1
            self._own_ns += own_ns
            self._step_ns += max(t1_ns - t0_ns, 0)
            _DONE.pack_into(memory, _DONE_AT, self._done, self._own_ns, self._step_ns)
            live[_BEAT] = t1_ns
            if TALLIES:
                self._tell_remedies()

    def request(self, step: int, trace_id: int, span_id: int) -> None:
        """Records a span that a step is done for, before its end: trace id of 128 bits, span id of 64."""
        with self._lock:
            if self._forked:
                self._open_own()
            number = self._n
            place = self._first + number % self._slots * self._size
            high, low = trace_id >> 64, trace_id & 0xFFFF_FFFF_FFFF_FFFF
            _LINK.pack_into(self._memory, place, number, step, high, low, span_id, 0, -1, -1, REQUEST, 0, 0)
            self._live[_HEAD] = self._n = number + 1

    def _tell_remedies(self) -> None:
        """What the remedies of this process did; names first."""
        told = ring_file.put_remedies(self._memory, self._words, TALLIES[:], self._told)
        if told > self._told:
            self._live[_REMEDIES] = self._told = told

    def _put_few(self, step: int, calls: Sequence[Call]) -> None:
        """Calls of few pairs without numpy: its code is cold in a running model, the interpreter is not."""
        first, slots, size, number = self._first, self._slots, self._size, self._n
        layers, memory, cells, experts = self._layers, self._memory, self._cells, self._experts
        words, totals_at, tokens_at, blank = self._words, self._totals_at, self._tokens_at, self._blank
        for seq, (site, t0, t1, ids) in enumerate(calls, number):
            place = first + seq % slots * size
            rows = len(ids)
            pairs = rows * len(ids[0]) if rows else 0
            _PACK.pack_into(memory, place, seq, step, t0, t1, 0, 0, layers[site], site, ROUTER, rows, pairs)
            at = place + RECORD_BYTES
            memory[at : at + len(blank)] = blank
            at //= 4
            total = totals_at + site * experts
            if rows < MANY:  # mostly other experts
                for row in ids:
                    for expert in row:
                        if 0 <= expert < experts:
                            cells[at + expert] += 1
                            words[total + expert] += 1
            else:
                for expert, many in Counter(chain.from_iterable(ids)).items():
                    if 0 <= expert < experts:
                        cells[at + expert] = many
                        words[total + expert] += many
            words[tokens_at + site] += rows
            if self._keep:
                self._ids[seq % slots, : min(pairs, self._keep)] = [*chain.from_iterable(ids)][: self._keep]
        self._live[_HEAD] = self._n = number + len(calls)

    def gauge(self, **values: float) -> None:
        """Sets gauges by name; others are left out."""
        if self._forked:
            with self._lock:
                self._open_own()
        for name, value in values.items():
            if name in self.gauges:
                self._values[self.gauges.index(name)] = value

    def failed(self) -> None:
        """Counts a call that could not be recorded."""
        if self._forked:
            with self._lock:
                self._open_own()
        self._live[_FAILURES] += 1

    def close(self) -> None:
        """Says that no more will come; the file stays for its readers, but is not held here. Safe twice."""
        with self._lock:
            if not self._forked:  # else it is still the parent's
                self._tell_remedies()
                self._live[_BEAT], self._live[_CLOSED] = time.monotonic_ns(), 1
                self._map_private()
        _open.discard(self)

    def _open_own(self) -> None:
        """In a forked child, before it writes: a file of its own, or none where there is no space."""
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
        self.path = folder / f"{ring_file.namespace()}-{os.getpid()}-{next(_numbers)}.ring"
        about = {
            "schema": SCHEMA, "pid": os.getpid(), "started": ring_file.started(os.getpid()),
            "namespace": ring_file.namespace(),
            "host": platform.node(), "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), **self.facts,
            "sites": [asdict(site) for site in self.sites], "gauges": self.gauges, **asdict(layout),
        }  # fmt: skip
        text = json.dumps(about).encode()
        if DESCRIPTION[0] + len(text) > DESCRIPTION[1]:
            raise UsageError(f"{layout.routers} routers are too many to describe in a ring")
        hidden = self.path.with_suffix(".new")
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            ring_file.take(fd, layout.size, folder)
            self._memory = mmap.mmap(fd, layout.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            for page in range(0, layout.size, mmap.PAGESIZE):  # else the first write to each is a page fault
                self._memory[page] = 0
            self._memory[: len(MAGIC)] = MAGIC
            self._memory[DESCRIPTION[0] : DESCRIPTION[0] + len(text)] = text
            hidden.rename(self.path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        self._map()

    def _map(self) -> None:
        layout, memory = self.layout, self._memory
        self._done = self._own_ns = self._step_ns = self._told = 0
        self._n, self._first, self._size = 0, layout.slots_at, layout.record_bytes
        self._slots, self._experts, self._keep = layout.slots, layout.experts, layout.ids
        self._zeros = np.zeros(layout.experts, np.int64)
        self._layers = [s.layer for s in self.sites]
        self._live = memoryview(memory)[_LIVE_AT : _LIVE_AT + 8 * len(LIVE)].cast("Q")
        self._live[_BEAT] = time.monotonic_ns()
        self._values = np.frombuffer(memory, np.float64, GAUGES, 256)
        self._values[:] = np.nan
        self._totals = list(layout.totals(memory).view(np.int64))  # as bincount counts: no cast
        self._words = memoryview(memory)[: layout.size // 8 * 8].cast("Q")
        self._totals_at = TOTALS_AT // 8
        self._tokens_at = self._totals_at + layout.routers * layout.experts
        tokens: Any = layout.tokens(memory)
        self._tokens = memoryview(tokens)
        self._cells = memoryview(memory)[: layout.size // 4 * 4].cast("I")
        self._blank = bytes(4 * layout.experts)
        slots = layout.slots_of(memory)
        end = RECORD_BYTES + 4 * layout.experts
        self._counts = slots[:, RECORD_BYTES : end].view(np.uint32)
        self._ids = slots[:, end : end + 2 * layout.ids].view(np.int16)


def _counts(ids: np.ndarray[Any, Any], experts: int) -> np.ndarray[Any, Any]:
    """int64 [experts]; ids that name no expert (-1 of a dropped choice) are left out."""
    try:
        found = np.bincount(ids, minlength=experts)
    except ValueError:  # below 0
        found = np.bincount(ids[ids >= 0], minlength=experts)
    return found if len(found) == experts else found[:experts]


def _after_fork() -> None:
    """A child would be a second writer: it opens a file of its own, but only once it writes."""
    for ring in list(_open):
        ring._lock = threading.Lock()  # noqa: SLF001 - this module's own class; the parent may have held it
        ring._forked = True  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
