"""Nsight Systems exports of any kind (SQLite, Parquet, JSON lines) -> the table trace, one batch per process.

All of them hold the same event tables; this is what is done with their rows. A kind of export is an
object with the names of its tables and their rows in chunks of columns (see Export). Tables with
environments, host names and command lines are never asked for. Times are nanoseconds, moved to epoch
time where the session start is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from moexray.core.errors import ReadError
from moexray.core.rank_name import rank_in_name
from moexray.core.tables.timeline import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from moexray.core.run import Reading

__all__ = [
    "EVENT_TABLES", "NUMBERS", "OTHER_TABLES", "Collected", "Export", "Kind", "fill", "finish", "integers",
    "kind_of",
]  # fmt: skip

MAX_EVENTS = 2_400_000  # of one export: with their analysis they stay within 1 GiB
RANGES = (59, 60)  # NVTX push/pop and start/end
PID = 0xFFFFFF  # globalTid is hwId << 56 | vmId << 48 | pid << 24 | tid
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"  # whole graphs, where nodes are not traced

# (table, category, columns that name a row, first known one wins).
TABLES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", ("demangledName", "shortName", "mangledName")),
    (GRAPH_TABLE, "kernel", ("graphId",)),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy", ("copyKind",)),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memset", ()),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "runtime", ("nameId",)),
    ("NVTX_EVENTS", "annotation", ("text", "textId")),
)
EVENT_TABLES = frozenset(name for name, _, _ in TABLES)
STRINGS, START = "StringIds", "TARGET_INFO_SESSION_START_TIME"
OTHER_TABLES = frozenset((STRINGS, START))
NUMBERS = ("start", "end", "globalPid", "globalTid", "deviceId", "streamId", "correlationId", "bytes",
           "eventType")  # fmt: skip

Chunk = dict[str, Any]  # column -> list, or an array of integers with -1 for unknown


class Export(Protocol):
    """One export.

    Attributes:
        present: Names of its tables.
    """

    present: set[str]

    def count(self, table: str) -> int:
        """Rows of a table."""

    def chunks(self, table: str, columns: Sequence[str]) -> Iterator[Chunk]:
        """The rows of a table in chunks; columns that this version of the export lacks are left out."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A table that is read: its name, the code of its category, and the columns that name a row."""

    table: str
    category: int
    texts: tuple[str, ...]


def kind_of(table: str) -> Kind:
    """The Kind of an event table."""
    return next(Kind(name, CATEGORIES.index(c), texts) for name, c, texts in TABLES if name == table)


class Collected:
    """Events of all tables as columns, with shared names and lanes."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[int, int], int] = {}
        self.parts: list[dict[str, NDArray[Any]]] = []
        self.events = self.skipped = self.left_out = 0
        self.until = 1 << 62  # where the first table ends that was not read in full

    def add(
        self, kind: Kind, chunk: Chunk, strings: dict[int, str], room: int = MAX_EVENTS
    ) -> int:
        """Takes at most `room` rows of a chunk; what has no possible time is counted and left out.

        Returns:
            How many were taken.
        """
        size = len(next(iter(chunk.values()), ()))
        at = {name: integers(chunk[name]) if name in chunk else np.full(size, -1) for name in NUMBERS}
        keep = np.ones(size, np.bool_)
        if kind.table == "NVTX_EVENTS":
            keep = np.isin(at["eventType"], RANGES) & (at["end"] != -1)
        sound = (at["start"] >= 0) & (at["start"] <= at["end"]) & (at["end"] < 1 << 62)
        self.skipped += int(np.count_nonzero(keep & ~sound))
        rows = np.flatnonzero(keep & sound)
        room = max(0, min(room, MAX_EVENTS - self.events))
        if len(rows) > room:
            self.left_out += len(rows) - room
            self.until = min(self.until, int(at["start"][rows[room]]))
            rows = rows[:room]
        if not len(rows):
            return 0
        at = {name: values[rows] for name, values in at.items()}
        where = np.where(at["globalPid"] != -1, at["globalPid"], np.maximum(at["globalTid"], 0))
        process = where >> 24 & PID
        on_device = at["deviceId"] >= 0
        device = np.where(on_device, np.minimum(at["deviceId"], 30_000), -1)
        stream = np.where(on_device, np.clip(at["streamId"], 0, 2**31 - 1), -1)
        track = np.where(on_device, -1 - stream - (device << 31), np.maximum(at["globalTid"], 0) & PID)
        self.events += len(rows)
        self.parts.append(
            {
                "process": process.astype(np.int32),
                "ts_ns": at["start"],
                "dur_ns": at["end"] - at["start"],
                "category": np.full(len(rows), kind.category, np.int8),
                "name": self._names(kind, chunk, rows.tolist(), strings),
                "lane": self._lanes(process, track),
                "device": device.astype(np.int16),
                "stream": stream.astype(np.int32),
                "correlation": at["correlationId"],
                "bytes": at["bytes"],
            }
        )
        return len(rows)

    def _lanes(self, process: NDArray[np.int64], track: NDArray[np.int64]) -> NDArray[np.int32]:
        pairs, inverse = np.unique(np.stack((process, track)), axis=1, return_inverse=True)
        found = [self.lanes.setdefault((int(p), int(t)), len(self.lanes)) for p, t in pairs.T]
        return np.array(found, np.int32)[inverse.reshape(-1)]

    def _names(
        self, kind: Kind, chunk: Chunk, rows: list[int], strings: dict[int, str]
    ) -> NDArray[np.int32]:
        columns = [values for name in kind.texts if (values := chunk.get(name)) is not None]
        columns = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns]
        known: dict[tuple[Any, ...], int] = {}
        out = []
        for i in rows:
            key = tuple([column[i] for column in columns])
            code = known.get(key)
            if code is None:
                text = _name(kind.table, key, strings)
                code = known[key] = self.names.setdefault(text, len(self.names))
            out.append(code)
        return np.array(out, np.int32)


def integers(values: Any) -> NDArray[np.int64]:
    """Whole numbers of a column; -1 for what is none or leaves 64 bits."""
    if isinstance(values, np.ndarray):
        return values
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([v if type(v) is int and abs(v) < 1 << 63 else -1 for v in values], np.int64)


def _name(table: str, values: tuple[Any, ...], strings: dict[int, str]) -> str:
    """The name of a row; "" where the export lost the text of its id."""
    first = next((v for v in values if v is not None and v != -1), None)
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        return f"Memcpy {COPIES.get(first, '')}".strip() if isinstance(first, int) else "Memcpy"
    if table == "CUPTI_ACTIVITY_KIND_MEMSET":
        return "Memset"
    if table == GRAPH_TABLE:
        return "CUDA graph" if first is None else f"CUDA graph {first}"
    text = strings.get(first, "") if isinstance(first, int) else str(first or "")
    return text.partition("_v")[0] if text.startswith(("cuda", "cu")) and text[-4:].isdigit() else text


def fill(export: Export, path: str, out: Reading) -> None:
    """Fills the table trace from the event tables of an export.

    Raises:
        ReadError: it has no event tables, or no event.
    """
    if not export.present & (EVENT_TABLES - {"NVTX_EVENTS"}):
        raise ReadError(
            "no event tables of Nsight Systems in it",
            where=path,
            hint="nsys export --type sqlite (or parquetdir, jsonlines) of a profile with -t cuda",
        )
    strings: dict[int, str] = {}
    if STRINGS in export.present:
        for chunk in export.chunks(STRINGS, ("id", "value")):
            if len(chunk) == 2:
                ids = integers(chunk["id"]).tolist()
                strings |= {i: str(v) for i, v in zip(ids, chunk["value"], strict=True)}
    got = Collected()
    counts = {table: export.count(table) for table, _, _ in TABLES if table in export.present}
    share = min(1.0, MAX_EVENTS / max(1, sum(counts.values())))  # the same part of each: exports are in order
    for table, _, texts in TABLES:
        if table in export.present:
            room = math.ceil(share * counts[table])
            for chunk in export.chunks(table, (*NUMBERS, *texts)):
                room -= got.add(kind_of(table), chunk, strings, room)
    finish(got, _session(export), path, out)


def finish(got: Collected, session: tuple[int, int] | None, path: str, out: Reading) -> None:
    """Adds the batches, and says what was left out."""
    if got.skipped:
        out.problem(
            "input.negative_duration",
            f"{got.skipped} events have impossible times; they were left out",
            lost=got.skipped,
            values={"dropped": got.skipped},
        )
    if not got.events:
        raise ReadError("an Nsight Systems export without any event", where=path)
    whole = got.events + got.left_out
    out.reader = "nsys"
    kept = _batches(got, session, path, out)
    if kept < whole:
        said = f"only the first {kept:,} of {whole:,} events were read, up to one moment"
        out.problem("input.huge", said, lost=whole - kept)


def _session(export: Export) -> tuple[int, int] | None:
    """(epoch, system clock) at the start of the session, ns; None where it is not recorded."""
    if START not in export.present:
        return None
    for chunk in export.chunks(START, ("utcEpochNs", "systemClockNs")):
        if len(chunk) == 2 and len(chunk["utcEpochNs"]):
            epoch, clock = (int(integers(chunk[key])[0]) for key in ("utcEpochNs", "systemClockNs"))
            return (epoch, clock) if epoch >= 0 and clock >= 0 else None
    return None


def _batches(got: Collected, session: tuple[int, int] | None, path: str, out: Reading) -> int:
    """Adds a batch for each process; returns how many events they hold."""
    table = {key: np.concatenate([part.pop(key) for part in got.parts]) for key in tuple(got.parts[0])}
    got.parts.clear()
    if got.left_out and (late := table["ts_ns"] >= got.until).any():
        table = {key: values[~late] for key, values in table.items()}
    shift = 0
    if session is not None:
        epoch, clock = session
        normalised = int(table["ts_ns"].min()) < clock  # such times count from the start of the session
        shift = epoch if normalised else epoch - clock
    process = table.pop("process")
    lanes = [(pid, track, "") for pid, track in got.lanes]
    processes = np.unique(process).tolist()
    for pid in processes:
        mine = np.flatnonzero(process == pid)
        mine = mine[np.argsort(table["ts_ns"][mine], kind="stable")]
        columns = {key: values[mine] for key, values in table.items()}
        columns["ts_ns"] += shift
        out.add_columns(
            "trace",
            columns,
            source=path,
            rows=len(mine),
            names=list(got.names),
            lanes=lanes,
            rank=rank_in_name(path) if len(processes) == 1 else None,
            world_size=None,
            groups=[],
            devices=[],
            format="nsys",
            base_ns=shift,
            resolution_ns=1,
            label=f"process {pid}",
        )
    return len(process)
