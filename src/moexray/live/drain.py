"""Reads the rings of engines on this machine, from another process or the same one.

    drain = Drain()                        # all rings of this user; Drain(folder) for another place
    while True:
        for ring, batch in drain.poll():   # what came since the last poll
            batch.records["t1_ns"], batch.counts, batch.dropped
        time.sleep(0.2)

A reader never writes to a ring and never waits for the writer. Counters of an exporter come from
`ring.totals()`, which nobody can miss; `batch` holds what happened since, step by step, as far as it was
read in time; `batch.dropped` counts the records that were overwritten before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import ReadError
from moexray.runtime.ring_file import (
    DESCRIPTION,
    GAUGES,
    LINK,
    LIVE,
    MAGIC,
    RECORD,
    REMEDIES_AT,
    REMEDY,
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
    from numpy.typing import NDArray

__all__ = ["ROUTER", "STEP", "Batch", "Drain", "Meta", "RingReader", "rings"]

OUTCOMES = ("applied", "fallback", "skipped")  # of a remedy
MAX_FILE = 1 << 30  # bytes; a larger ring is refused
SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # what this process, not the ring, lacks


@dataclass(frozen=True, slots=True)
class Meta:
    """What a ring says of its engine.

    Args:
        engine: transformers, vllm, ...; version is its release.
        version: See engine.
        model: Class or name of the model.
        rank: Global rank; None where the engine has one process.
        device: Where the router ran ("cpu", "cuda:0").
        role: model (routers and steps) or engine (steps only: the scheduler's clock).
        host: Name of the machine.
        pid: Of the writer.
        sites: Routers, in the order of `records["site"]` and of the rows of `totals()`.
        gauges: Names of the numbers in `gauges()`.
        wall_ns: time.time_ns() at `mono_ns`, when the ring was made.
        mono_ns: CLOCK_MONOTONIC, the clock of the records.
    """

    engine: str
    version: str
    model: str
    rank: int | None
    device: str
    role: str
    host: str
    pid: int
    sites: tuple[Site, ...]
    gauges: tuple[str, ...]
    wall_ns: int
    mono_ns: int

    def wall(self, mono_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Epoch nanoseconds of times of the records."""
        return mono_ns + np.int64(self.wall_ns - self.mono_ns)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in the order they were written; copies, so they stay as they are.

    Args:
        records: Structured array [n] with seq, step, t0_ns, t1_ns, stream, graph, layer, site, kind (ROUTER
            or STEP), rows (tokens), pairs (token-expert pairs). A STEP has layer and site -1 and no counts.
        counts: uint32 [n, experts], pairs per logical expert.
        ids: int16 [n, ids kept]: the first `pairs` of a record, row by row of tokens; what follows is stale.
        requests: Structured array [requests]: step, trace_high, trace_low and span of each span that a step
            was done for; they come before the STEP, or without one where it did not end.
        dropped: Records written since the last read that are not here: overwritten unread.
    """

    records: NDArray[Any]
    counts: NDArray[np.uint32]
    ids: NDArray[np.int16]
    requests: NDArray[Any]
    dropped: int


def rings(folder: str | Path | None = None) -> list[Path]:
    """The files of all rings in a folder (see recorder.ring_folder), oldest writer first.

    Raises:
        UsageError: the folder is not ours alone.
    """
    return sorted(ring_folder(folder).glob("*.ring"), key=lambda p: (len(p.name), p.name))


class RingReader:
    """One ring. Reading goes on where the last `read` ended; the first one begins at the oldest record.

    Attributes:
        path: The file.
        meta: What it says of its engine.
        dropped: Records missed so far.

    Args:
        path: As `rings` gives it.

    Raises:
        ReadError: it is no ring, of another version, or damaged.
        OSError: it is gone, or may not be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.dropped = 0
        self._next = 0
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            size = os.fstat(fd).st_size
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not DESCRIPTION[1] <= size <= MAX_FILE:
                raise self._refused(f"{size} bytes")
            self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        about = self._description()
        try:
            self.meta, self._layout = _meta(about), _layout(about)
            self._started, self._namespace = int(about.get("started") or 0), int(about["namespace"])
        except (KeyError, TypeError, ValueError, OverflowError) as why:
            raise self._refused(f"its description lacks {why}") from why
        if self._layout.size > size:
            raise self._refused(f"{size} bytes, {self._layout.size} described")
        self._live = memoryview(self._memory)[64 : 64 + 8 * len(LIVE)].cast("Q")
        self._slots = self._layout.slots_of(self._memory)

    def read(self) -> Batch:
        """What came since the last `read`."""
        batch, self._next = self._read(self._next)
        self.dropped += batch.dropped
        return batch

    def read_since(self, seq: int) -> Batch:
        """Records from number `seq` on, as far as they are still there; `read` goes on as before."""
        return self._read(seq)[0]

    def skip(self) -> None:
        """Has the next `read` begin with what is written from now on."""
        self._next = self.written

    @property
    def slots(self) -> int:
        """Records that it holds at most."""
        return self._layout.slots

    @property
    def written(self) -> int:
        """Records ever written."""
        return int(self._live[LIVE.index("head")])

    def live(self) -> dict[str, int]:
        """What the writer keeps beside the records.

        head (records ever written), steps, own_ns (what recording cost), step_ns (time of the steps),
        failures (calls not recorded), closed (0 or 1), beat_ns (CLOCK_MONOTONIC of the last step), remedies
        (names told), held (steps that wait in the writer's process to be recorded).
        """
        return dict(zip(LIVE, map(int, self._live), strict=True))

    def totals(self) -> NDArray[np.uint64]:
        """[sites, experts] token-expert pairs since the ring was made, whatever records were missed."""
        return self._layout.totals(self._memory).copy()

    def tokens(self) -> NDArray[np.uint64]:
        """[sites] tokens since the ring was made."""
        return self._layout.tokens(self._memory).copy()

    def gauges(self) -> dict[str, float]:
        """Numbers the engine's side samples about once a second; those not known are left out."""
        values = np.frombuffer(self._memory, np.float64, GAUGES, 256)
        return {n: float(v) for n, v in zip(self.meta.gauges, values, strict=False) if not np.isnan(v)}

    def remedies(self) -> dict[str, dict[str, int]]:
        """What each remedy of the writer's process did since that began: applied, fallback, skipped.

        All rings of a process tell the same.
        """
        count = min(int(self._live[LIVE.index("remedies")]), (TOTALS_AT - REMEDIES_AT) // REMEDY.itemsize)
        found = np.frombuffer(self._memory, REMEDY, count, REMEDIES_AT)
        return {
            bytes(row["name"]).decode("utf-8", "replace"): {o: int(row[o]) for o in OUTCOMES} for row in found
        }

    @property
    def process(self) -> tuple[int, int, int]:
        """Namespace, id and start of the writer: no two processes of a machine share all three."""
        return self._namespace, self.meta.pid, self._started

    def ended(self) -> bool:
        """Whether the writer's process is gone; False where that cannot be told from here."""
        return is_running(self.meta.pid, self._started, self._namespace) is False

    def lost(self) -> int:
        """Steps that its writer held back when it was killed: they are in no record and no total."""
        gone = self.ended() and not self._live[LIVE.index("closed")]
        return min(int(self._live[LIVE.index("held")]), self.slots) if gone else 0

    def is_whole(self) -> bool:
        """Whether the file has its size: reading what somebody cut off would end this process by SIGBUS."""
        return self._memory.size() >= self._layout.size

    def alive(self) -> bool | None:
        """Whether the writer still runs and has the ring open; None where that cannot be told from here."""
        if self._live[LIVE.index("closed")]:
            return False
        return is_running(self.meta.pid, self._started, self._namespace)

    def _read(self, seq: int) -> tuple[Batch, int]:
        head, slots = self.written, self._layout.slots
        wanted = np.arange(max(seq, head - slots, 0), max(head, seq), dtype=np.uint64)
        rows = (wanted % np.uint64(slots)).astype(np.int64)
        copied = self._slots[rows]
        # The writer puts a record's number first: where it is still there, nothing was overwritten meanwhile.
        after = self._slots[rows, :8].view(np.uint64)[:, 0]
        copied = copied[(after == wanted) & (copied[:, :8].copy().view(np.uint64)[:, 0] == wanted)]
        heads = copied[:, : RECORD.itemsize].copy().view(RECORD)[:, 0]
        of_requests = heads["kind"] == REQUEST
        requests = heads[of_requests].view(LINK)
        sound = self._sound(heads)
        heads, copied = heads[sound], copied[sound]
        end = RECORD.itemsize + 4 * self._layout.experts
        batch = Batch(
            heads,
            copied[:, RECORD.itemsize : end].copy().view(np.uint32),
            copied[:, end : end + 2 * self._layout.ids].copy().view(np.int16),
            requests,
            max(head - max(seq, 0), 0) - len(heads) - len(requests),
        )
        return batch, max(head, seq)

    def _sound(self, records: NDArray[Any]) -> NDArray[np.bool_]:
        """Which are of a router or a step as a writer can have written them; damaged ones count as missed."""
        router, site = records["kind"] == ROUTER, records["site"]
        known = np.where(router, (site >= 0) & (site < len(self.meta.sites)), records["kind"] == STEP)
        return np.asarray(known & (records["t1_ns"] >= records["t0_ns"]) & (records["t0_ns"] >= 0))

    def _description(self) -> dict[str, Any]:
        if self._memory[: len(MAGIC)] != MAGIC:
            raise self._refused("it does not begin as one")
        text = self._memory[DESCRIPTION[0] : DESCRIPTION[1]].rstrip(b"\0")
        with contextlib.suppress(ValueError):
            about = json.loads(text)
            if isinstance(about, dict) and about.get("schema") == SCHEMA:
                return about
            if isinstance(about, dict) and str(about.get("schema")).startswith("moexray.ring/"):
                raise self._refused(
                    f"it is {about['schema']}, this release reads {SCHEMA}",
                    hint="the engine and the exporter need the same release of moexray",
                )
        raise self._refused(f"its description is not {SCHEMA}")

    def _refused(self, why: str, hint: str = "") -> ReadError:
        return ReadError(f"not a ring of moexray: {why}", where=str(self.path), hint=hint)


class Drain:
    """All rings of a folder: new ones are found, those of dead writers read to the end, then forgotten.

    Attributes:
        readers: Open rings by path.
        refused: Files that are no rings, with the reason.

    Args:
        folder: See `rings`.
        remove: Whether the file of a dead writer is deleted once it was read to its end.
    """

    def __init__(self, folder: str | Path | None = None, *, remove: bool = False) -> None:
        self.readers: dict[Path, RingReader] = {}
        self.refused: dict[Path, str] = {}
        self._folder, self._remove = folder, remove
        self._done: set[Path] = set()

    def poll(self) -> list[tuple[RingReader, Batch]]:
        """What came since the last poll, ring by ring; rings without news give an empty batch.

        A ring whose writer is gone is given a last time, then leaves `readers`.
        """
        found = rings(self._folder)
        self._done &= set(found)
        for path in found:
            if path not in self.readers and path not in self._done and path not in self.refused:
                self._open(path)
        given = []
        for path, reader in list(self.readers.items()):
            if not reader.is_whole():
                del self.readers[path]
                self._refuse(path, "it was cut off while it was read")
                continue
            gone = reader.alive() is False  # asked before reading: what it wrote until then is read
            given.append((reader, reader.read()))
            if gone:
                del self.readers[path]
                self._done.add(path)
                if self._remove:
                    with contextlib.suppress(OSError):
                        path.unlink()
        return given


    def _open(self, path: Path) -> None:
        try:
            self.readers[path] = RingReader(path)
        except FileNotFoundError:  # swept meanwhile
            return
        except ReadError as why:
            self._refuse(path, why.what)
        except OSError as why:
            if why.errno not in SHORT_OF:  # else the next poll tries again
                self._refuse(path, why.strerror or str(why))

    def _refuse(self, path: Path, why: str) -> None:
        self.refused[path] = why


def _meta(about: dict[str, Any]) -> Meta:
    rank = about.get("rank")
    text = {key: str(about.get(key, "")) for key in ("engine", "version", "model", "device", "host")}
    sites = (Site(str(s["path"]), int(s["layer"]), int(s["experts"]), int(s["k"])) for s in about["sites"])
    return Meta(
        **text, rank=None if rank is None else int(rank), role=str(about.get("role", "model")),
        pid=int(about["pid"]), sites=tuple(sites), gauges=tuple(map(str, about["gauges"])),
        wall_ns=int(about["wall_ns"]), mono_ns=int(about["mono_ns"]),
    )  # fmt: skip


def _layout(about: dict[str, Any]) -> Layout:
    layout = Layout(*(int(about[key]) for key in ("routers", "experts", "ids", "slots")))
    experts = [int(site["experts"]) for site in about["sites"]]
    fit = all(1 <= count <= layout.experts for count in experts) and len(experts) == layout.routers
    if not fit or min(layout.experts, layout.ids) < 0 or layout.slots < 1:
        raise ValueError("sizes that fit each other")
    return layout
